"""The rows: their names, what --only selects, and which rows share processes."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

import dgc
from bench import rows
from bench.launch import launches
from bench.measure import Contender, Track
from bench.rows import COMPRESSED, DENSE, PIPELINED, all_rows, by_name, composition, row_of, select
from dgc.engines import LocalEngine
from dgc.exchanges import AllReduce
from dgc.planner import Plan, Timed
from tools.harness.algorithms import ALIASES, compositions
from tools.harness.launch import LAUNCHERS
from tools.harness.workloads import WORKLOADS, Batch, loss, make_batches, make_model


def names(chosen) -> list[str]:
    return [row.name for row in chosen]


def test_names_are_unique_and_have_the_engine_if_both_have_the_row():
    assert len(set(names(all_rows()))) == len(all_rows())
    assert {'compute (torch)', 'compute (horovod)', 'ddp', 'horovod fp16'} < set(names(all_rows()))
    assert {f'{base} ({engine})' for base in compositions() for engine in LAUNCHERS} < set(
        names(all_rows())
    )
    assert by_name(['ddp', 'dgc (torch)'])[1].base == 'dgc'


def test_only_takes_a_name_for_both_engines_or_for_one():
    assert select() == [row for row in all_rows() if not row.base.endswith(PIPELINED)]
    assert names(select(['dgc'])) == ['dgc (torch)', 'dgc (horovod)']
    assert names(select(['dgc (horovod)', 'ddp'])) == ['ddp', 'dgc (horovod)']  # the table's order
    assert names(select(['dgc', 'ddp'], ['torch'])) == ['ddp', 'dgc (torch)']
    pipelined = names(select(['dgc pipelined', 'dgc'], ['torch']))
    assert pipelined == ['dgc (torch)', 'dgc pipelined (torch)']
    assert [row.base for row in by_name(pipelined)] == ['dgc', 'dgc pipelined']


@pytest.mark.parametrize(
    ('name', 'engines', 'message'),
    [
        ('dcg', ('torch', 'horovod'), "no row 'dcg' under torch or horovod: did you mean 'dgc'"),
        ('horovod fp16', ('torch',), 'no row .horovod fp16. under torch'),
        ('xxxxxxxx', ('torch',), 'there are chunk, chunk .torch., compute, '),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, engines, message):
    with pytest.raises(ValueError, match=message):
        select(['compute', name], engines)


def test_rows_share_the_processes_of_their_engine_but_for_those_that_run_alone():
    groups = [names(group) for group in launches(select())]
    assert groups[-1] == ['powersgd']
    assert [name for group in groups for name in group if name != 'powersgd'] == [
        row.name
        for engine in LAUNCHERS
        for row in all_rows()
        if row.engine == engine and not row.alone and not row.base.endswith(PIPELINED)
    ]
    assert len(groups) == 3
    assert [names(g) for g in launches(select(['dgc', 'horovod']))] == [
        ['dgc (torch)'],
        ['horovod', 'dgc (horovod)'],
    ]


@pytest.mark.parametrize('name', WORKLOADS)
def test_workloads_fit_their_data(name):
    workload = WORKLOADS[name]._replace(shape=(6,)) if name == 'lstm' else WORKLOADS[name]
    batch = Batch(*make_batches(workload, 2, rank=0)[0])
    model = make_model(workload)
    expected = math.log(workload.classes)
    assert 0.5 * expected < loss(model(batch.inputs), batch.targets).item() < 2 * expected


def test_rows_that_plan_by_times_are_made_on_the_links_they_are_measured_on():
    late = {row.base.removesuffix(PIPELINED) for row in all_rows() if row.late}
    made = {name: make() for name, make in compositions().items()}
    assert late == {name for name, each in made.items() if isinstance(each.planner, Timed)}
    assert {'dgc merged', 'dgc adaptive', 'mgwfbp', 'omgs', 'lags'} <= late


def test_rows_that_send_all_elements_as_they_are_count_as_dense():
    ours = {name: row_of(name, 'torch').kind for name in compositions()}
    made = {name: make() for name, make in compositions().items()}
    assert {n for n, kind in ours.items() if kind == DENSE} == {
        n for n, each in made.items() if isinstance(each.exchange, AllReduce)
    }
    assert ours['mgwfbp'] == DENSE and ours['sign-sgd'] == COMPRESSED


def test_names_of_earlier_versions_stay_valid():
    for alias, name in ALIASES.items():
        assert select([alias]) == select([name])
        assert names(select([f'{alias} (torch)'])) == [f'{name} (torch)']


def test_a_row_that_the_measured_dgc_lacks_fails_when_it_is_made(monkeypatch):
    monkeypatch.setattr(rows, 'compositions', lambda: {'dense': compositions()['dense']})
    dense, lacking, ddp = by_name(['dense (torch)', 'dgc packed (torch)', 'ddp'])
    assert lacking.name == 'dgc packed (torch)' and ddp.base == 'ddp'
    dense.make(make_model(WORKLOADS['digits']), LocalEngine(), None)
    with pytest.raises(ValueError, match=r"no such row: KeyError\('dgc packed'\)"):
        lacking.make(make_model(WORKLOADS['digits']), LocalEngine(), None)


def test_a_row_has_the_plan_of_its_buckets():
    contender = Contender(by_name(['dgc per tensor (torch)'])[0])
    assert contender.buckets is None
    model = make_model(WORKLOADS['digits'])
    contender.trained = contender.row.make(model, LocalEngine(), None)
    plan = Plan.from_json(contender.buckets)
    assert [len(bucket.members) for bucket in plan.buckets] == [1, 1, 1, 1, 6]


def test_ranks_have_the_same_weights_and_data_of_their_own():
    workload = WORKLOADS['digits']
    ours, again = make_model(workload), make_model(workload)
    assert all(map(torch.equal, ours.parameters(), again.parameters()))
    first, same, other = (make_batches(workload, 4, rank)[0] for rank in (0, 0, 1))
    assert torch.equal(first.inputs, same.inputs)
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize('name', compositions())
def test_compositions_train_and_count_their_bytes(name):
    workload = WORKLOADS['digits']

    def work(engine: dgc.Engine):
        track = Track(engine, make_batches(workload, 4, engine.rank))
        model = make_model(workload)
        trained = composition(compositions()[name])(model, engine, partial(track.profile, model))
        return track.run(trained, 2), [p.detach() for p in trained.network.parameters()]

    (sample, first), (_, other) = dgc.simulate(2, work)
    assert all(map(torch.equal, first, other))
    assert sample.ms > 0 and sample.cpu > 0 and sample.wait >= 0
    dense = 4 * sum(p.numel() for p in first)  # a ring of two sends each element twice, half of it
    sends_all = row_of(name, 'torch').kind == DENSE
    assert sample.codec == dense if sends_all else 0 < sample.codec < dense / 3.5  # 8 bits
    assert math.isnan(sample.kernel)
    assert Contender(all_rows()[0]).samples == []
