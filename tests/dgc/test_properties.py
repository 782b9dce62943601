"""What every composition owes, from one table: a new composition is one row.

Conservation, per worker and across the cluster; agreement; at ratio 1.0, momentum SGD; flushing
when sparse turns to dense; state through a checkpoint.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from dgc_helpers import (
    Selection,
    forecast,
    kept_by,
    loss,
    owed,
    parameters,
    train,
    values,
    watch,
    wrap,
)
from torch import Tensor

import dgc
from dgc.clipping import ClipByGlobalNorm, ClipByModelNorm, ClipByNorm, ClipByValue
from dgc.codec import Codec
from dgc.compressors import GaussianThreshold, PeriodicThreshold, SampledTopK, TopK
from dgc.exchanges import (
    AllGather,
    Bruck,
    ChunkAllReduce,
    GTopK,
    GTopKDoubling,
    Hierarchical,
    OkTopK,
    SparDL,
)
from dgc.memory import MomentumCorrection, Residual
from dgc.planner import Adaptive, BySize, Merged, PerTensor, Whole
from dgc.reducer import Progress
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule

sparse = partial(dgc.deep_gradient_compression, compress_ratio=0.02)
# Of a network on which neither all layers nor none of them should be merged.
FORECAST = forecast(
    {'scale': 1.0, 'bias': 1.1, 'narrow.weight': 2.0, 'wide.weight': 9.0}, start=0.3, byte=0.005
)

# Name: what makes a fresh composition. A row that is called dense sends everything, always.
TABLE: dict[str, Callable[[], dgc.Composition]] = {
    'dense': dgc.dense,
    'dense, small buckets': lambda: dgc.dense(planner=PerTensor(dense_bytes=8)),
    'dense, merged': lambda: dgc.dense(planner=Merged(FORECAST)),
    'dense, residual': lambda: dgc.Composition(memory=Residual()),
    'dense, skip': lambda: dgc.dense(nonfinite='skip'),
    'dgc': sparse,
    'dgc fp16 int32': lambda: sparse(fp16_values=True, int32_indices=True),
    'dgc bf16': lambda: sparse(codec=Codec('bf16', 'int32')),
    'dgc packed': lambda: sparse(indices='packed'),
    'dgc packed int8': lambda: sparse(indices='packed', values='int8'),
    'dgc packed int4': lambda: sparse(indices='packed', values='int4'),
    'dgc inverse ratio': lambda: sparse(compress_ratio=50),
    'dgc per tensor': lambda: sparse(planner=PerTensor()),
    'dgc small buckets': lambda: sparse(planner=BySize(sparse_bytes=800)),
    'dgc whole': lambda: sparse(planner=Whole()),
    'dgc merged': lambda: sparse(planner=Merged(FORECAST)),
    'dgc ratios by layer': lambda: sparse(planner=Adaptive(FORECAST, max_ratio=0.2)),
    'dgc exact': lambda: sparse(compressor=TopK()),
    'dgc exact fp16': lambda: sparse(compressor=TopK(), fp16_values=True),
    'dgc uniform sample': lambda: sparse(strided_sample=False),
    'dgc no resample': lambda: sparse(resample=False),
    'dgc gaussian': lambda: sparse(compressor=GaussianThreshold()),
    'dgc no masking': lambda: sparse(memory=MomentumCorrection(momentum_masking=False)),
    'dgc no masking bf16': lambda: sparse(
        memory=MomentumCorrection(momentum_masking=False), codec=Codec('bf16', 'int64')
    ),
    'dgc warm-up': lambda: sparse(
        warmup_epochs=3, warmup_coeff=[0.1, 0.05, 0.03], warmup_stage_steps=4
    ),
    'dgc own ratios': lambda: sparse(rules=LayerRules(ratios={'wide.*': 0.05})),
    'dgc dense layers': lambda: sparse(rules=LayerRules(dense=['narrow.*'], min_numel=100)),
    'dgc where dense is cheaper': lambda: sparse(
        compress_ratio=0.5, rules=LayerRules(ratios={'wide.*': 0.02})
    ),
    'dgc clip value': lambda: sparse(gradient_clipping=ClipByValue(0.5)),
    'dgc clip norm': lambda: sparse(gradient_clipping=ClipByNorm(1.0)),
    'dgc clip model norm': lambda: sparse(gradient_clipping=ClipByModelNorm(1.0)),
    'dgc clip global norm': lambda: sparse(gradient_clipping=ClipByGlobalNorm(1.0)),
    'dgc skip': lambda: sparse(nonfinite='skip'),
    'residual exact': lambda: sparse(memory=Residual(), compressor=TopK()),
    'residual sampled': lambda: sparse(memory=Residual(), compressor=SampledTopK(seed=3)),
    'residual periodic': lambda: sparse(memory=Residual(), compressor=PeriodicThreshold(period=4)),
    'residual fp16': lambda: sparse(memory=Residual(), fp16_values=True, int32_indices=True),
}
# Each exchange, for more workers and more steps.
EXCHANGES: dict[str, Callable[[], dgc.Composition]] = {
    'gtopk': lambda: sparse(memory=Residual(), exchange=GTopK()),
    'gtopk doubling packed int8': lambda: sparse(
        exchange=GTopKDoubling(), indices='packed', values='int8'
    ),
    'spardl': lambda: sparse(exchange=SparDL()),
    'spardl 2 teams fp16': lambda: sparse(exchange=SparDL(teams=2), fp16_values=True),
    'spardl 3 teams': lambda: sparse(memory=Residual(), exchange=SparDL(teams=3)),
    'oktopk': lambda: sparse(
        memory=Residual(),
        compressor=PeriodicThreshold(period=4),
        exchange=OkTopK(threshold_period=8, region_period=16),
    ),
    'hierarchical': lambda: sparse(exchange=Hierarchical(AllGather(), local_size=2)),
    'hierarchical gtopk': lambda: sparse(
        memory=Residual(), exchange=Hierarchical(GTopK(), local_size=3)
    ),
    'chunk': lambda: sparse(exchange=ChunkAllReduce(chunk=8)),
}
TABLE |= EXCHANGES
TABLE |= {
    'gtopk momentum fp16': lambda: sparse(exchange=GTopK(), fp16_values=True, int32_indices=True),
    'gtopk doubling': lambda: sparse(memory=Residual(), exchange=GTopKDoubling()),
    'spardl residual': lambda: sparse(memory=Residual(), exchange=SparDL()),
    'spardl packed int8': lambda: sparse(exchange=SparDL(), indices='packed', values='int8'),
    'spardl sampled': lambda: sparse(exchange=SparDL(compressor=SampledTopK())),
    'spardl 2 teams, Bruck': lambda: sparse(exchange=SparDL(teams=2, gather=Bruck())),
    'spardl 4 teams': lambda: sparse(exchange=SparDL(teams=4)),
    'oktopk momentum fp16': lambda: sparse(exchange=OkTopK(threshold_period=8), fp16_values=True),
    'hierarchical spardl': lambda: sparse(exchange=Hierarchical(SparDL(), local_size=2)),
    'hierarchical oktopk': lambda: sparse(
        memory=Residual(), exchange=Hierarchical(OkTopK(threshold_period=8), local_size=2)
    ),
    'hierarchical, one each': lambda: sparse(exchange=Hierarchical(AllGather(), local_size=1)),
    'chunk residual': lambda: sparse(memory=Residual(), exchange=ChunkAllReduce(chunk=16)),
}
WORKERS = (1, 2, 3, 4, 5)
MORE_WORKERS = (6, 7, 8, 9, 16)
MOMENTA = ((0.0, False), (0.9, False), (0.9, True))
STEPS, MORE_STEPS = 20, 50


class Case(NamedTuple):
    """A row, among so many workers, under a kind of momentum."""

    row: str
    workers: int
    momentum: float
    nesterov: bool

    def __str__(self) -> str:
        kind = 'nesterov' if self.nesterov else 'momentum' if self.momentum else 'plain'
        return f'{self.row}, {self.workers} workers, {kind}'


def fits(row: str, workers: int) -> bool:
    """Whether a row's exchange serves so many; what else it refuses is not asked for here."""
    engine = SimpleNamespace(rank=0, size=workers, local_rank=0, local_size=1)
    try:
        TABLE[row]().exchange.check(engine)
    except ValueError:
        return False
    return True


# Every row meets every number of workers and, in turns, every kind of momentum.
CASES = [
    Case(row, workers, *MOMENTA[(number + workers) % len(MOMENTA)])
    for number, row in enumerate(TABLE)
    for workers in (WORKERS + MORE_WORKERS if row in EXCHANGES else WORKERS)
    if fits(row, workers)
]
cases = pytest.mark.parametrize('case', CASES, ids=str)


@dataclass
class Diary:
    """What one worker noted: by bucket, its selections, and P times each mean that came back."""

    composition: dgc.Composition
    selections: dict[str, list[Selection]]
    totals: dict[str, list[Tensor]]
    snapshots: list[list[Tensor]]
    kept: dict[str, Tensor]
    progress: Progress


def keep_diary(engine: dgc.Engine, composition: dgc.Composition, steps: int, case: Case) -> Diary:
    """Train for ``steps`` with weight decay, three steps an epoch, and note everything."""
    named = parameters()
    optimizer = wrap(
        named,
        composition,
        engine,
        momentum=case.momentum,
        nesterov=case.nesterov,
        weight_decay=0.01,
        steps_per_epoch=3,
    )
    selections, buckets = watch(composition), optimizer.reducer.buckets
    totals, snapshots = {bucket.name: [] for bucket in buckets}, []
    for step in range(steps):
        optimizer.zero_grad()
        loss(named, engine.rank, step).backward()
        optimizer.synchronize()
        for bucket in buckets:
            totals[bucket.name].append(bucket.gradient.double() * engine.size)
        optimizer.step()
        snapshots.append(values(named))
    kept = {bucket.name: kept_by(bucket).double() for bucket in buckets}
    return Diary(composition, selections, totals, snapshots, kept, optimizer.reducer.progress)


def assert_conserved(diaries: list[Diary], case: Case) -> None:
    """Applied + kept = all that the memories were given, over the workers and steps."""
    for name, totals in diaries[0].totals.items():
        given = sum(
            owed(diary.selections[name], case.momentum, case.nesterov, diary.composition.memory)
            for diary in diaries
        )
        kept = sum(diary.kept[name] for diary in diaries)
        # Many small numbers come and go where only a small one is left: float32 of the largest.
        atol = max(3e-4, 1e-6 * float(given.abs().max()))
        torch.testing.assert_close(sum(totals) + kept, given, rtol=1e-5, atol=atol, msg=name)


@pytest.fixture(scope='class', params=CASES, ids=str)
def case(request) -> Case:
    return request.param


@pytest.fixture(scope='class')
def diaries(case) -> list[Diary]:
    steps = MORE_STEPS if case.row in EXCHANGES else STEPS
    return dgc.simulate(
        case.workers, lambda engine: keep_diary(engine, TABLE[case.row](), steps, case)
    )


class TestOneRun:
    """Properties that are read off one run, made once for each row, size and momentum."""

    def test_each_worker_sends_or_keeps_all_of_its_corrected_gradient(self, diaries):
        for diary in diaries:
            for selections in diary.selections.values():
                assert len(selections) == diary.progress.steps
                for selection in selections:
                    assert torch.equal(selection.sent + selection.kept, selection.corrected)

    def test_what_was_applied_and_what_is_kept_is_all_there_was(self, diaries, case):
        assert_conserved(diaries, case)

    def test_parameters_are_the_same_bits_on_all_workers_after_every_step(self, diaries):
        for diary in diaries[1:]:
            for ours, first in zip(diary.snapshots, diaries[0].snapshots, strict=True):
                assert all(map(torch.equal, ours, first))

    def test_a_row_is_sparse_where_it_says_so(self, diaries, case):
        for diary in diaries:
            kept, numel = diary.progress.kept, diary.progress.numel
            assert kept == numel if case.row.startswith('dense') else 0 < kept < 0.3 * numel
        kept = any(kept.any() for diary in diaries for kept in diary.kept.values())
        assert kept != case.row.startswith('dense')


@cache
def dense_sgd(workers: int, momentum: float, nesterov: bool, steps: int) -> list[list[Tensor]]:
    """The parameters after each step of torch.optim.SGD on the mean gradient."""
    named = parameters()
    optimizer = torch.optim.SGD(
        [p for _, p in named], lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.01
    )
    snapshots = []
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss(named, rank, step) for rank in range(workers)) / workers).backward()
        optimizer.step()
        snapshots.append(values(named))
    return snapshots


@cases
def test_ratio_one_is_momentum_sgd_on_the_mean_gradient(case):
    def worker(engine):
        composition = replace(
            TABLE[case.row](), schedule=RatioSchedule(1.0), rules=LayerRules(), clipping=None
        )
        return keep_diary(engine, composition, 6, case)

    reference = dense_sgd(case.workers, case.momentum, case.nesterov, steps=6)
    for diary in dgc.simulate(case.workers, worker):
        for ours, right in zip(diary.snapshots, reference, strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)


@cases
def test_turning_dense_flushes_what_was_kept_and_loses_nothing(case):
    def worker(engine):
        schedule = RatioSchedule(1.0, warmup_epochs=2, warmup_coeff=[0.02, 0.02])
        composition = replace(TABLE[case.row](), schedule=schedule, rules=LayerRules())
        return keep_diary(engine, composition, 2 * 3 + 1, case)

    diaries = dgc.simulate(case.workers, worker)
    selections = [notes for diary in diaries for notes in diary.selections.values()]
    assert any(notes[-2].kept.any() for notes in selections) != case.row.startswith('dense')
    assert not any(kept.any() for diary in diaries for kept in diary.kept.values())
    assert_conserved(diaries, case)


@pytest.mark.parametrize('case', [case for case in CASES if case.workers in (1, 3)], ids=str)
def test_ten_steps_are_five_a_checkpoint_and_five_more(case):
    settings = {
        'momentum': case.momentum,
        'nesterov': case.nesterov,
        'weight_decay': 0.01,
        'steps_per_epoch': 3,
    }

    def worker(engine):
        def fresh():
            named = parameters()
            return named, wrap(named, TABLE[case.row](), engine, **settings)

        straight, optimizer = fresh()
        train(optimizer, straight, range(10), engine.rank)

        first, interrupted = fresh()
        train(interrupted, first, range(5), engine.rank)
        file = io.BytesIO()
        torch.save({'model': values(first), 'optimizer': interrupted.state_dict()}, file)
        file.seek(0)
        checkpoint = torch.load(file, weights_only=True)

        second, resumed = fresh()
        with torch.no_grad():
            for (_, parameter), saved in zip(second, checkpoint['model'], strict=True):
                parameter.copy_(saved)
        resumed.load_state_dict(checkpoint['optimizer'])
        train(resumed, second, range(5, 10), engine.rank)
        return [(values(straight), optimizer), (values(second), resumed)]

    for (straight, optimizer), (second, resumed) in dgc.simulate(case.workers, worker):
        assert all(map(torch.equal, straight, second))
        assert_same(optimizer.state_dict(), resumed.state_dict())
        ratios = [[b.ratio for b in o.reducer.buckets] for o in (optimizer, resumed)]
        assert ratios[0] == ratios[1]


@pytest.mark.parametrize('bad', [0, 3])
@pytest.mark.parametrize('row', TABLE)
def test_a_nan_of_one_worker_stops_all_and_comes_into_no_memory(row, bad):
    if not fits(row, 6) or TABLE[row]().nonfinite == 'skip':
        pytest.skip('six workers do not fit, or the step is left out')

    def worker(engine):
        named = parameters()
        optimizer = wrap(named, TABLE[row](), engine, momentum=0.9, steps_per_epoch=3)
        train(optimizer, named, 3, engine.rank)
        optimizer.zero_grad()
        part = torch.tensor(torch.nan if engine.rank == bad else 1.0)
        (part * loss(named, engine.rank, 3)).backward()
        with pytest.raises(dgc.NonFiniteGradientError):
            optimizer.step()
        buckets = optimizer.reducer.buckets
        return all(flat.isfinite().all() for b in buckets for flat in b.buffers.values())

    assert all(dgc.simulate(6, worker))


def assert_same(one: object, other: object) -> None:
    """The same keys, numbers and bits all the way down."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other
