"""Plans as files: replayed as they were; where they do not fit, the error names the parameter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dgc_helpers import parameters, train, values, wrap
from test_planner_timed import TestInTraining
from torch.nn import Parameter

import dgc
from dgc.costmodel import Network
from dgc.planner import (
    Adaptive,
    BySize,
    Kept,
    Merged,
    MergedGreedily,
    PerTensor,
    Plan,
    PlanError,
    Replay,
    Whole,
)
from dgc.planner.plan import read

PLANNERS = {
    'by size': BySize(sparse_bytes=800),
    'per tensor': PerTensor(dense_bytes=0),
    'whole': Whole(),
    'merged': Merged(),
    'adaptive': Adaptive(),
}


def trained(planner, steps=5, workers=2):
    """The plan and the parameters of rank 0 after some steps."""

    def worker(engine):
        named = parameters()
        composition = dgc.deep_gradient_compression(0.02, planner=planner)
        optimizer = wrap(named, composition, engine, momentum=0.9, profile=TestInTraining.profile)
        train(optimizer, named, steps, engine.rank)
        return optimizer.plan, values(named)

    return dgc.simulate(workers, worker, Network(1e-3, 1e-8))[0]


@pytest.mark.parametrize('planner', PLANNERS.values(), ids=PLANNERS)
def test_a_plan_replays_to_the_last_bit(tmp_path, planner):
    plan, expected = trained(planner)
    plan.save(tmp_path / 'plan.json')
    again, found = trained(Replay(str(tmp_path / 'plan.json')))
    assert again.buckets == plan.buckets
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize('planner', [PerTensor(dense_bytes=0), Whole()], ids=['tensors', 'whole'])
def test_a_kept_plan_stands_where_the_planner_would_divide_otherwise(planner):
    """As of a checkpoint, although the times of a later start are others."""
    plan, _ = trained(planner)
    again, _ = trained(Kept(Plan(plan.buckets), MergedGreedily()))
    assert again.buckets == plan.buckets
    assert again.predicted.keys() == {'MergedGreedily', 'per tensor', 'whole model'}


def test_a_kept_plan_that_does_not_fit_gives_way(tmp_path):
    plan, _ = trained(Whole())
    other = [replace(bucket, requested=0.5) for bucket in plan.buckets]
    again, _ = trained(Kept(Plan(other), PerTensor(dense_bytes=0)))
    assert len(again.buckets) > len(plan.buckets)


def test_a_plan_reads_as_a_table(tmp_path):
    plan, _ = trained(Merged(), steps=0)
    assert plan.summary().startswith(
        f'plan: 4 parameters in {len(plan.buckets)} buckets; predicted'
    )
    lines = plan.table().splitlines()
    assert len(lines) == 1 + len(plan.buckets)
    assert any('2.000%' in line for line in lines) and any('uncompressed' in line for line in lines)
    assert 'predicted' not in Plan(plan.buckets).summary()


def test_a_plan_by_inexact_times_says_that_it_cannot_tell(tmp_path):
    """docs/failures.md, row 25: an error of 58 % of the measured costs."""
    plan, _ = trained(Merged(), steps=0)
    costs = plan.timing.costs
    for error, says in ((0.1, False), (0.58, True)):
        measured = replace(costs, dense=replace(costs.dense, error=error), sparse=None)
        told = replace(plan, timing=replace(plan.timing, costs=measured)).summary()
        assert told.endswith('an error of 58%, which cannot tell which is the best') is says


@pytest.fixture
def measured(tmp_path):
    """The file of a run of two workers that measured."""
    trained(Merged(), steps=0)[0].save(tmp_path / 'plan.json')
    return str(tmp_path / 'plan.json')


class TestTimesOfAnEarlierRun:
    def test_they_are_taken_and_nothing_is_measured(self, measured):
        earlier = read(measured)
        plan, _ = trained(MergedGreedily(times_of=measured), steps=0)
        assert plan.timing == earlier.timing
        assert plan.predicted['per tensor'] == earlier.predicted['per tensor']

    def test_of_another_world_size_or_model_they_are_refused(self, measured):
        with pytest.raises(PlanError, match='has times of 2 ranks, here are 3'):
            trained(Merged(times_of=measured), workers=3)
        content = json.loads(Path(measured).read_text())
        content['timing']['arrivals']['stranger'] = 1.0
        Path(measured).write_text(json.dumps(content))
        with pytest.raises(PlanError, match='of another model: this one has no stranger'):
            trained(Merged(times_of=measured))

    def test_a_plan_by_size_has_none(self, tmp_path):
        trained(BySize(), steps=0)[0].save(tmp_path / 'plan.json')
        with pytest.raises(PlanError, match=r'plan\.json has no times'):
            trained(Merged(times_of=str(tmp_path / 'plan.json')))


class TestRefusals:
    @pytest.fixture
    def file(self, tmp_path):
        """Of a plan that fits."""
        trained(PerTensor(), steps=0)[0].save(tmp_path / 'plan.json')
        return str(tmp_path / 'plan.json')

    def replay(self, file, density=0.02, named=None):
        def worker(engine):
            composition = dgc.deep_gradient_compression(density, planner=Replay(file))
            return wrap(named or parameters(), composition, engine).plan

        return dgc.simulate(2, worker)[0]

    def test_a_model_with_another_name(self, file):
        other = [('other.weight' if n == 'wide.weight' else n, p) for n, p in parameters()]
        with pytest.raises(PlanError, match=r'of another model: this one has no wide\.weight'):
            self.replay(file, named=other)

    def test_a_model_with_another_shape(self, file):
        other = [(n, Parameter(torch.zeros(3, 3)) if n == 'narrow.weight' else p)
                 for n, p in parameters()]  # fmt: skip
        with pytest.raises(
            PlanError, match=r'narrow\.weight has shape \[16, 10\] there and \[3, 3\] here'
        ):
            self.replay(file, named=other)

    def test_a_model_with_more(self, file):
        other = [*parameters(), ('more.weight', Parameter(torch.zeros(3, 3)))]
        with pytest.raises(PlanError, match=r'it lacks more\.weight'):
            self.replay(file, named=other)

    def test_a_parameter_twice(self, file, tmp_path):
        content = json.loads((tmp_path / 'plan.json').read_text())
        content['buckets'].append(content['buckets'][0])
        (tmp_path / 'plan.json').write_text(json.dumps(content))
        with pytest.raises(PlanError, match='it has a parameter twice'):
            self.replay(file)

    def test_another_density(self, file):
        with pytest.raises(PlanError, match=r'at density 0.02, this run has it at density 0.01'):
            self.replay(file, density=0.01)
        with pytest.raises(PlanError, match=r'this run has it at no density \(uncompressed\)'):
            self.replay(file, density=1.0)

    def test_parameters_that_may_not_share(self, tmp_path):
        trained(PerTensor(), steps=0)[0].save(tmp_path / 'plan.json')
        content = json.loads((tmp_path / 'plan.json').read_text())
        wide, narrow, *dense = content['buckets']
        wide['parameters'] |= dense.pop()['parameters']
        content['buckets'] = [wide, narrow, *dense]
        (tmp_path / 'plan.json').write_text(json.dumps(content))
        both = str(tmp_path / 'plan.json')
        with pytest.raises(PlanError, match='in one bucket'):
            self.replay(both)

    @pytest.mark.parametrize(
        'text',
        [
            '', '{}', '[]', '{"version": 2}', 'null',
            '{"version": 2, "predicted_seconds": {}, "timing": null, "buckets": [{}]}',
            '{"version": 2, "predicted_seconds": {}, "timing": null, "buckets": [{"parameters": {},'
            ' "dtype": "float32", "is_compressed": false, "density": null, "requested": null}]}',
        ],
    )  # fmt: skip
    def test_a_file_that_is_no_plan(self, tmp_path, text):
        (tmp_path / 'plan.json').write_text(text)
        with pytest.raises(PlanError, match=r'plan\.json holds no plan'):
            self.replay(str(tmp_path / 'plan.json'))

    def test_a_plan_of_an_older_version(self, file, tmp_path):
        content = json.loads((tmp_path / 'plan.json').read_text())
        (tmp_path / 'plan.json').write_text(json.dumps(content | {'version': 1}))
        with pytest.raises(PlanError, match='is a plan of version 1, and version 2 is needed'):
            self.replay(file)

    def test_no_file(self, tmp_path):
        with pytest.raises(PlanError, match=r'none\.json holds no plan: FileNotFoundError'):
            self.replay(str(tmp_path / 'none.json'))
