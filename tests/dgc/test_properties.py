"""The laws that each algorithm declares, from one table over all compositions.

Rows are the synchronous algorithms of ``dgc.ALGORITHMS``, each with its own laws, and variants of
Deep Gradient Compression and of the exchanges that exercise one part each.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

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
from documented import documented
from state_helpers import assert_same
from torch import Tensor

import dgc
from dgc.algorithms import ALGORITHMS, CONSERVING, Kind, Law
from dgc.clipping import ClipByGlobalNorm, ClipByModelNorm, ClipByNorm, ClipByValue
from dgc.codec import Codec
from dgc.compressors import GaussianThreshold, PeriodicThreshold, SampledTopK, TopK
from dgc.control import GraVAC, LGreCo
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
from dgc.memory import (
    DecoupledMomentum,
    FirstMoment,
    MeanMomentum,
    MomentumCorrection,
    Residual,
)
from dgc.planner import Adaptive, BySize, Merged, PerTensor, Whole
from dgc.progress import Progress
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule

DENSITY = 0.02
sparse = partial(dgc.deep_gradient_compression, compress_ratio=DENSITY)
# Of a network on which neither all layers nor none of them should be merged.
FORECAST = forecast(
    {'scale': 1.0, 'bias': 1.1, 'narrow.weight': 2.0, 'wide.weight': 9.0}, start=0.3, byte=0.005
)

# Settings of algorithms that this small model needs.
SETTINGS: dict[str, dict[str, object]] = {
    'omgs': {'planner': Merged(FORECAST)},
    'mgwfbp': {'planner': Merged(FORECAST)},
    'lags': {'planner': Adaptive(FORECAST, max_ratio=0.2)},
    'hierarchical': {'local_size': 2},
    'chunk': {'chunk': 8},
    'power-sgd': {'rank': 2},
    'demo': {'topk': 4, 'chunk': 8},
    'one-bit-adam': {'freeze_step': 3},
    'oktopk': {'threshold_period': 8, 'region_period': 16},
    'threshold-v': {'threshold': 4.0},
    'l-greco': {'control': LGreCo(every=3)},
    'gravac': {'control': GraVAC(largest=3, window=2)},
}


# Those for the movement of local steps, which take gradients as well. Others differ from these, or
# from dense, in what surrounds them: test_local_methods.py.
MOVEMENTS = ('sparse-loco', 'quantized-diloco', 'zero-one-adam')


class Row(NamedTuple):
    """What makes a fresh composition, and the laws that hold for it."""

    make: Callable[[], dgc.Composition]
    laws: frozenset[Law] = CONSERVING


def row_of(name: str) -> Row:
    """An algorithm at this file's density."""
    algorithm = ALGORITHMS[name]
    settings = SETTINGS.get(name, {})
    return Row(lambda: algorithm.composition(DENSITY, **settings), algorithm.laws)


UNCOMPRESSED = ALGORITHMS['dense'].laws
ALL_IS_SENT_OR_KEPT = frozenset({Law.CONSERVES, Law.CONSERVES_ROUNDED})
ROUNDED = frozenset({Law.CONSERVES_ROUNDED, Law.FLUSHES})  # of memories in bfloat16
TABLE: dict[str, Row] = {
    name: row_of(name)
    for name, row in ALGORITHMS.items()
    if row.kind is Kind.SYNCHRONOUS or name in MOVEMENTS
}
TABLE |= {
    'dense, small buckets': Row(lambda: dgc.dense(planner=PerTensor(dense_bytes=8)), UNCOMPRESSED),
    'dense, residual': Row(lambda: dgc.Composition(memory=Residual()), UNCOMPRESSED),
    'dense, skip': Row(lambda: dgc.dense(nonfinite='skip'), UNCOMPRESSED),
    'dgc fp16 int32': Row(lambda: sparse(fp16_values=True, int32_indices=True)),
    'dgc bf16': Row(lambda: sparse(codec=Codec('bf16', 'int32'))),
    'dgc packed': Row(lambda: sparse(indices='packed')),
    'dgc packed int8': Row(lambda: sparse(indices='packed', values='int8')),
    'dgc packed int4': Row(lambda: sparse(indices='packed', values='int4')),
    'dgc inverse ratio': Row(lambda: sparse(compress_ratio=50)),
    'dgc per tensor': Row(lambda: sparse(planner=PerTensor())),
    'dgc small buckets': Row(lambda: sparse(planner=BySize(sparse_bytes=800))),
    'dgc whole': Row(lambda: sparse(planner=Whole())),
    'dgc merged': Row(lambda: sparse(planner=Merged(FORECAST))),
    'dgc exact': Row(lambda: sparse(compressor=TopK())),
    'dgc exact fp16': Row(lambda: sparse(compressor=TopK(), fp16_values=True)),
    'dgc uniform sample': Row(lambda: sparse(strided_sample=False)),
    'dgc no resample': Row(lambda: sparse(resample=False)),
    'dgc no masking': Row(lambda: sparse(memory=MomentumCorrection(momentum_masking=False))),
    'dgc no masking bf16': Row(
        lambda: sparse(
            memory=MomentumCorrection(momentum_masking=False), codec=Codec('bf16', 'int64')
        )
    ),
    'dgc warm-up': Row(
        lambda: sparse(warmup_epochs=3, warmup_coeff=[0.1, 0.05, 0.03], warmup_stage_steps=4)
    ),
    'dgc own ratios': Row(lambda: sparse(rules=LayerRules(ratios={'wide.*': 0.05}))),
    'dgc dense layers': Row(lambda: sparse(rules=LayerRules(dense=['narrow.*'], min_numel=100))),
    'dgc all layers': Row(lambda: sparse(rules=LayerRules(min_dims=0))),
    'dgc where dense is cheaper': Row(
        lambda: sparse(compress_ratio=0.5, rules=LayerRules(ratios={'wide.*': 0.02}))
    ),
    'dgc clip value': Row(lambda: sparse(gradient_clipping=ClipByValue(0.5))),
    'dgc clip norm': Row(lambda: sparse(gradient_clipping=ClipByNorm(1.0))),
    'dgc clip model norm': Row(lambda: sparse(gradient_clipping=ClipByModelNorm(1.0))),
    'dgc clip global norm': Row(lambda: sparse(gradient_clipping=ClipByGlobalNorm(1.0))),
    'dgc skip': Row(lambda: sparse(nonfinite='skip')),
    'residual exact': Row(lambda: sparse(memory=Residual(), compressor=TopK())),
    'residual sampled': Row(lambda: sparse(memory=Residual(), compressor=SampledTopK(seed=3))),
    'residual periodic': Row(
        lambda: sparse(memory=Residual(), compressor=PeriodicThreshold(period=4))
    ),
    'residual fp16': Row(lambda: sparse(memory=Residual(), fp16_values=True, int32_indices=True)),
    'dgc decoupled momentum': Row(lambda: sparse(memory=DecoupledMomentum()), frozenset()),
    'dgc decoupled momentum that does not decay': Row(
        lambda: sparse(memory=DecoupledMomentum(decay=1.0)), frozenset()
    ),
    'dgc mean momentum': Row(lambda: sparse(memory=MeanMomentum())),
    # The masking drops what the momentum of the mean holds of other ranks.
    'dgc mean momentum, warm-up': Row(
        lambda: sparse(
            memory=MeanMomentum(),
            warmup_epochs=3,
            warmup_coeff=[1, 1, 0.05],
            warmup_stage_steps=4,
        ),
        CONSERVING - {Law.CONSERVES},
    ),
    'dgc mean momentum, skip': Row(lambda: sparse(memory=MeanMomentum(), nonfinite='skip')),
    'first moment': Row(lambda: sparse(memory=FirstMoment()), frozenset()),
    'first moment masked fp16': Row(
        lambda: sparse(memory=FirstMoment(momentum_masking=True), fp16_values=True), frozenset()
    ),
    'gaussian-k residual': Row(lambda: sparse(memory=Residual(), compressor=GaussianThreshold())),
}
# Each exchange that truncates, for more ranks and more steps.
EXCHANGES: dict[str, Row] = {
    'gtopk': TABLE['gtopk'],
    'gtopk-doubling packed int8': Row(
        lambda: sparse(exchange=GTopKDoubling(), indices='packed', values='int8')
    ),
    'spardl momentum': Row(lambda: sparse(exchange=SparDL())),
    'spardl 2 teams fp16': Row(lambda: sparse(exchange=SparDL(teams=2), fp16_values=True)),
    'spardl 3 teams': Row(lambda: sparse(memory=Residual(), exchange=SparDL(teams=3))),
    'oktopk': TABLE['oktopk'],
    'hierarchical': TABLE['hierarchical'],
    'hierarchical gtopk': Row(
        lambda: sparse(memory=Residual(), exchange=Hierarchical(GTopK(), local_size=3))
    ),
    'chunk': TABLE['chunk'],
}
TABLE |= EXCHANGES
TABLE |= {
    'gtopk momentum fp16': Row(
        lambda: sparse(exchange=GTopK(), fp16_values=True, int32_indices=True)
    ),
    'spardl packed int8': Row(lambda: sparse(exchange=SparDL(), indices='packed', values='int8')),
    'spardl sampled': Row(lambda: sparse(exchange=SparDL(compressor=SampledTopK()))),
    'spardl 2 teams, Bruck': Row(lambda: sparse(exchange=SparDL(teams=2, gather=Bruck()))),
    'spardl 4 teams': Row(lambda: sparse(exchange=SparDL(teams=4))),
    'oktopk momentum fp16': Row(
        lambda: sparse(exchange=OkTopK(threshold_period=8), fp16_values=True)
    ),
    'hierarchical spardl': Row(lambda: sparse(exchange=Hierarchical(SparDL(), local_size=2))),
    'hierarchical oktopk': Row(
        lambda: sparse(
            memory=Residual(), exchange=Hierarchical(OkTopK(threshold_period=8), local_size=2)
        )
    ),
    'hierarchical, one each': Row(lambda: sparse(exchange=Hierarchical(AllGather(), local_size=1))),
    'power-sgd small buckets': Row(
        lambda: ALGORITHMS['power-sgd'].composition(planner=BySize(sparse_bytes=800), rank=2)
    ),
    'chunk residual': Row(lambda: sparse(memory=Residual(), exchange=ChunkAllReduce(chunk=16))),
}
# What docs/adding.md adds, step by step; tests/docs compares the rows with the page's.
RandomSubset = documented('dgc/compressors/random_subset.py').RandomSubset
Ring = documented('dgc/exchanges/ring.py').Ring
TABLE |= {
    'random subset': Row(lambda: sparse(compressor=RandomSubset())),
    'ring': Row(lambda: sparse(exchange=Ring())),
}
TABLE |= {
    'dgc memory16': Row(lambda: sparse(memory=MomentumCorrection(dtype='bfloat16')), ROUNDED),
    'dgc memory16 packed int8': Row(
        lambda: sparse(
            memory=MomentumCorrection(dtype='bfloat16'), indices='packed', values='int8'
        ),
        ROUNDED,
    ),
    'residual memory16': Row(lambda: sparse(memory=Residual(dtype='bfloat16')), ROUNDED),
    'spardl memory16': Row(
        lambda: sparse(memory=Residual(dtype='bfloat16'), exchange=SparDL()), ROUNDED
    ),
    'hierarchical memory16': Row(
        lambda: sparse(
            memory=Residual(dtype='bfloat16'), exchange=Hierarchical(AllGather(), local_size=2)
        ),
        ROUNDED,
    ),
}
WORKERS = (1, 2, 3, 4, 5)
MORE_WORKERS = (6, 7, 8, 9, 16)
MOMENTA = ((0.0, False), (0.9, False), (0.9, True))
SHORT, STEPS, MORE_STEPS = 8, 20, 40  # the longest period, of Ok-Topk's regions, is 16 steps


class Case(NamedTuple):
    """A row, among so many workers, under a kind of momentum, for so many steps of its run."""

    row: str
    workers: int
    momentum: float
    nesterov: bool
    steps: int = STEPS

    def __str__(self) -> str:
        kind = 'nesterov' if self.nesterov else 'momentum' if self.momentum else 'plain'
        return f'{self.row}, {self.workers} workers, {kind}'


def fits(row: str, workers: int) -> bool:
    """Whether a row's exchange serves so many; what else it refuses is not asked for here."""
    engine = SimpleNamespace(rank=0, size=workers, local_rank=0, local_size=1)
    try:
        TABLE[row].make().exchange.check(engine)
    except ValueError:
        return False
    return True


def momenta(row: str) -> list[tuple[float, bool]]:
    """The kinds of momentum for which a row's memory has a rule."""
    found = []
    for kind in MOMENTA:
        try:
            TABLE[row].make().memory.check(*kind)
        except ValueError:
            continue
        found.append(kind)
    return found


def in_turns(values: Sequence[Any], number: int) -> list[Any]:
    """Two of ``values``, others for each ``number``: neighbours in a table have them all."""
    if len(values) < 3:
        return list(values)
    return sorted({values[number % len(values)], values[(number + 2) % len(values)]})


def sizes(row: str, number: int) -> list[int]:
    """The numbers of ranks that a row meets.

    Algorithms and exchanges depend on it, so each meets all from 1 to 5. Variants of one part share
    the exchange of another row: they meet two of the five, in turns. Exchanges that truncate meet
    two larger worlds as well.
    """
    small, large = ([size for size in some if fits(row, size)] for some in (WORKERS, MORE_WORKERS))
    if row in EXCHANGES:
        return small + in_turns(large, number)
    return small if row in ALGORITHMS else in_turns(small, number)


def length(row: str, number: int, workers: int) -> int:
    """The steps of a row's run among so many ranks.

    What adds up over many steps, and what comes back with a period, is to be found with one number
    of ranks as well as with another. So each row makes its long run in one small world of more than
    one rank, in turns, and each exchange that truncates in a large one as well. Other runs are
    shorter.
    """
    met = sizes(row, number)
    small, large = [size for size in met if 1 < size <= 5], [size for size in met if size > 5]
    long = {small[number % len(small)], *large[:1]}
    if row in EXCHANGES:
        return MORE_STEPS if workers in long else STEPS
    return STEPS if workers in long else SHORT


def case_of(row: str, number: int, workers: int, steps: int = STEPS) -> Case:
    """A row among so many ranks; it meets its kinds of momentum in turns."""
    kinds = momenta(row)
    return Case(row, workers, *kinds[(number + workers) % len(kinds)], steps)


NUMBERED = list(enumerate(TABLE))
CASES = [
    case_of(row, number, size, length(row, number, size))
    for number, row in NUMBERED
    for size in sizes(row, number)
]


def cases_of(law: Law) -> pytest.MarkDecorator:
    """Each row for which a law holds with one of its numbers of ranks up to 5, in turns: with the
    larger of two for two rows in three. Exchanges that truncate meet both."""
    chosen = []
    for number, row in NUMBERED:
        if law in TABLE[row].laws:
            two = in_turns([size for size in sizes(row, number) if size <= 5], number)
            one = two[:1] if number % 3 == 0 else two[-1:]
            chosen += [case_of(row, number, size) for size in (two if row in EXCHANGES else one)]
    return pytest.mark.parametrize('case', chosen, ids=str)


def with_a_bad_rank(size: int) -> pytest.MarkDecorator:
    """Each row that serves ``size`` ranks, with the rank whose gradient is not finite: rank 0,
    which is the root of trees and the owner of element 0, or rank 3, in turns."""
    chosen = [(row, (0, 3)[number % 2]) for number, row in NUMBERED if fits(row, size)]
    both = [(row, bad) for row in EXCHANGES if fits(row, size) for bad in (0, 3)]
    return pytest.mark.parametrize(('row', 'bad'), list(dict.fromkeys(chosen + both)))


@dataclass
class Diary:
    """What one rank noted of each step, by bucket: its selection, P times the result, and its
    residual afterwards."""

    composition: dgc.Composition
    selections: dict[str, list[Selection]]
    totals: dict[str, list[Tensor]]
    snapshots: list[list[Tensor]]
    residuals: dict[str, list[Tensor]]
    progress: Progress

    @property
    def kept(self) -> dict[str, Tensor]:
        """The residual after the last step, float64 ``[n]``, by bucket."""
        return {name: residuals[-1] for name, residuals in self.residuals.items()}


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
    buckets = optimizer.reducer.buckets
    selections = watch(composition) if TABLE[case.row].laws & ALL_IS_SENT_OR_KEPT else {}
    totals, residuals = ({bucket.name: [] for bucket in buckets} for _ in range(2))
    snapshots = []
    for step in range(steps):
        optimizer.zero_grad()
        loss(named, engine.rank, step).backward()
        optimizer.synchronize()
        for bucket in buckets:
            totals[bucket.name].append(bucket.gradient.double() * engine.size)
            residuals[bucket.name].append(kept_by(bucket).double())
        optimizer.step()
        snapshots.append(values(named))
    return Diary(composition, selections, totals, snapshots, residuals, optimizer.progress)


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


def rounding_of(diary: Diary, name: str, case: Case) -> Tensor:
    """Sum over one rank's steps the squares of half the interval in which each rounding of its
    memory lies: of v, of the errors that return to it, and of u, times what u's adds to v later."""
    memory, m = diary.composition.memory, case.momentum
    total = u = torch.zeros_like(diary.residuals[name][0])
    for note, residual in zip(diary.selections[name], diary.residuals[name], strict=True):
        total = total + note.corrected.double().square() + residual.square()
        if memory.holds_momentum:
            gradient = note.gradient.double()
            u = m * (u + gradient) if case.nesterov else m * u + gradient
            total += (m / (1 - m) * u).square()
            if memory.momentum_masking and not note.is_dense:
                u[note.indices] = 0
    return total * 2.0**-16  # an interval is at most 2⁻⁷ of the number


def assert_conserved_rounded(diaries: list[Diary], case: Case) -> None:
    """The same up to sums of independent roundings whose expectation is 0: six of their standard
    deviations, at their largest, for each element and for all of them towards or from 0."""
    for name, totals in diaries[0].totals.items():
        given = sum(
            owed(diary.selections[name], case.momentum, case.nesterov, diary.composition.memory)
            for diary in diaries
        )
        kept = sum(diary.kept[name] for diary in diaries)
        deviation = sum(rounding_of(diary, name, case) for diary in diaries).sqrt()
        error = sum(totals) + kept - given
        assert float((error.abs() - 6 * deviation).max()) < 3e-4, name
        together = float((error * given.sign()).sum())
        assert abs(together) < 6 * float(deviation.norm()) + 3e-4 * len(error), name


# The runs are the longest part of this file: processes that share the tests take some each.
SHARES = 6


@pytest.fixture(
    scope='class',
    params=[
        pytest.param(
            case, marks=pytest.mark.xdist_group(f'computing: properties {number % SHARES}')
        )
        for number, case in enumerate(CASES)
    ],
    ids=str,
)
def case(request) -> Case:
    return request.param


@pytest.fixture(scope='class')
def diaries(case) -> list[Diary]:
    return dgc.simulate(
        case.workers, lambda engine: keep_diary(engine, TABLE[case.row].make(), case.steps, case)
    )


def assert_equal(some: list[Tensor], others: list[Tensor], what: str) -> None:
    """Two lists of the model's parameters are the same bits; else the first difference is named."""
    for (name, _), one, other in zip(parameters(), some, others, strict=True):
        different = int((one != other).sum())
        assert torch.equal(one, other), f'{name} {what} differ in {different} of {one.numel()}'


def is_uncompressed(row: str) -> bool:
    """Whether a row's schedule never compresses."""
    return TABLE[row].make().schedule.is_uncompressed


class TestOneRun:
    """Properties that are read off one run, made once for each row, size and momentum."""

    def test_each_rank_sends_or_keeps_all_of_its_corrected_gradient(self, diaries, case):
        if not TABLE[case.row].laws & ALL_IS_SENT_OR_KEPT:
            pytest.skip('the row does not declare it')
        for diary in diaries:
            for selections in diary.selections.values():
                assert len(selections) == diary.progress.steps
                for selection in selections:
                    assert torch.equal(selection.sent + selection.kept, selection.corrected)

    def test_what_was_applied_and_the_residuals_are_all_there_was(self, diaries, case):
        laws = TABLE[case.row].laws
        if Law.CONSERVES in laws:
            assert_conserved(diaries, case)
        elif Law.CONSERVES_ROUNDED in laws:
            assert_conserved_rounded(diaries, case)
        else:
            pytest.skip('the row does not declare it')

    def test_parameters_are_the_same_bits_on_all_ranks_after_every_step(self, diaries):
        for diary in diaries[1:]:
            for ours, first in zip(diary.snapshots, diaries[0].snapshots, strict=True):
                assert_equal(ours, first, 'of two ranks')

    def test_a_row_is_compressed_where_it_says_so(self, diaries, case):
        for diary in diaries:
            progress = diary.progress
            if is_uncompressed(case.row):
                assert progress.sent_elements == progress.elements
                assert progress.sent == progress.dense_sent
            elif Law.CONSERVES in TABLE[case.row].laws:
                assert 0 < progress.sent_elements <= progress.elements
        if case.workers > 1 and not is_uncompressed(case.row):
            sent = sum(diary.progress.sent for diary in diaries)
            # Sums inside a machine are uncompressed.
            if not case.row.startswith('hierarchical'):
                assert sent < sum(diary.progress.dense_sent for diary in diaries)
        kept = any(kept.any() for diary in diaries for kept in diary.kept.values())
        if Law.CONSERVES in TABLE[case.row].laws:
            assert kept != is_uncompressed(case.row)


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


@cases_of(Law.EQUALS_DENSE)
def test_uncompressed_it_is_momentum_sgd_on_the_mean_gradient(case):
    def worker(engine):
        composition = replace(
            TABLE[case.row].make(), schedule=DensitySchedule(), rules=LayerRules(), clipping=None
        )
        return keep_diary(engine, composition, 6, case)

    reference = dense_sgd(case.workers, case.momentum, case.nesterov, steps=6)
    for diary in dgc.simulate(case.workers, worker):
        for ours, right in zip(diary.snapshots, reference, strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)


@cases_of(Law.FLUSHES)
def test_an_uncompressed_step_flushes_residuals_and_loses_nothing(case):
    def worker(engine):
        schedule = DensitySchedule(None, warmup_epochs=2, warmup_coeff=[0.02, 0.02])
        composition = replace(TABLE[case.row].make(), schedule=schedule, rules=LayerRules())
        return keep_diary(engine, composition, 2 * 3 + 1, case)

    diaries = dgc.simulate(case.workers, worker)
    before = [residuals[-2] for diary in diaries for residuals in diary.residuals.values()]
    assert any(residual.any() for residual in before)
    assert not any(kept.any() for diary in diaries for kept in diary.kept.values())
    if Law.CONSERVES in TABLE[case.row].laws:
        assert_conserved(diaries, case)
    elif Law.CONSERVES_ROUNDED in TABLE[case.row].laws:
        assert_conserved_rounded(diaries, case)


@pytest.mark.parametrize(
    'case',
    [
        case_of(row, number, size)
        for number, row in NUMBERED
        for size in ((1, 3) if row in EXCHANGES else (2, 3)[number % 2 :][:1])
        if fits(row, size)
    ],
    ids=str,
)
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
            return named, wrap(named, TABLE[case.row].make(), engine, **settings)

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
        assert_equal(
            straight,
            second,
            'of a run and a resumed one (does a part keep what it does not declare?)',
        )
        assert_same(optimizer.state_dict(), resumed.state_dict())
        densities = [[b.density for b in o.reducer.buckets] for o in (optimizer, resumed)]
        assert densities[0] == densities[1]


@with_a_bad_rank(6)
def test_a_nan_of_one_rank_stops_all_and_enters_no_state(row, bad):
    if TABLE[row].make().nonfinite == 'skip':
        pytest.skip('the step is skipped')

    def worker(engine):
        named = parameters()
        momentum = momenta(row)[-1][0]
        optimizer = wrap(named, TABLE[row].make(), engine, momentum=momentum, steps_per_epoch=3)
        train(optimizer, named, 3, engine.rank)
        optimizer.zero_grad()
        part = torch.tensor(torch.nan if engine.rank == bad else 1.0)
        (part * loss(named, engine.rank, 3)).backward()
        with pytest.raises(dgc.NonFiniteGradientError):
            optimizer.step()
        state = optimizer.reducer.state_dict()
        roles = ('memory', 'exchange', 'compressor')
        tensors = [t for role in roles for held in state[role].values() for t in held.values()]
        return all(tensor.isfinite().all() for tensor in tensors)

    assert all(dgc.simulate(6, worker))


@with_a_bad_rank(4)
def test_a_skipped_step_leaves_no_trace(row, bad):
    """One rank's gradient overflows: all ranks skip the step; state and parameters stay."""

    def worker(engine):
        named = parameters()
        composition = replace(TABLE[row].make(), nonfinite='skip')
        momentum = momenta(row)[-1][0]
        optimizer = wrap(named, composition, engine, momentum=momentum, steps_per_epoch=3)
        train(optimizer, named, 3, engine.rank)
        before, parameters_before = optimizer.state_dict(), values(named)
        optimizer.zero_grad()
        scale = torch.tensor(torch.inf if engine.rank == bad else 1.0)
        (scale * loss(named, engine.rank, 3)).backward()
        optimizer.step()
        after = optimizer.state_dict()
        assert after.pop('steps') == before.pop('steps') + 1
        assert_same(before, after)
        assert_equal(values(named), parameters_before, 'before and after a skipped step')
        train(optimizer, named, range(4, 6), engine.rank)
        return values(named)

    first, *others = dgc.simulate(4, worker)
    for other in others:
        assert_equal(other, first, 'of two ranks')
    assert all(value.isfinite().all() for value in first)
