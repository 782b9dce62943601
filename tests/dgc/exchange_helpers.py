"""What ranks bring to an exchange, and what they have afterwards."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from dgc_helpers import bucket_of
from torch import Tensor

import dgc
from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors.base import Compressor, keep
from dgc.corrected import Corrected
from dgc.engines import Engine, LocalEngine
from dgc.exchanges import (
    AllGather,
    Bruck,
    ChunkAllReduce,
    Context,
    Exchange,
    GTopK,
    GTopKDoubling,
    Hierarchical,
    OkTopK,
    SparDL,
)
from dgc.sparse import Payload, Sparse, cut, gather

EXACT = Codec('fp32', 'int64')
WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)

# Name: what makes a fresh exchange, and the divisor of the world sizes that it serves.
EXCHANGES: dict[str, tuple[Callable[[], Exchange], int]] = {
    'all-gather': (AllGather, 1),
    'gtopk': (GTopK, 1),
    'gtopk doubling': (GTopKDoubling, 1),
    'spardl': (SparDL, 1),
    'spardl 2 teams': (lambda: SparDL(2), 2),
    'spardl 3 teams': (lambda: SparDL(3), 3),
    'spardl 4 teams': (lambda: SparDL(4), 4),
    'spardl 4 teams, Bruck': (lambda: SparDL(4, Bruck()), 4),
    'oktopk': (OkTopK, 1),
    'chunk': (lambda: ChunkAllReduce(4), 1),
    'hierarchical': (lambda: Hierarchical(AllGather(), 2), 2),
    'hierarchical gtopk': (lambda: Hierarchical(GTopK(), 3), 3),
    'hierarchical spardl': (lambda: Hierarchical(SparDL(), 2), 2),
    'hierarchical spardl, Bruck': (lambda: Hierarchical(SparDL(2, Bruck()), 2), 4),
    'hierarchical oktopk': (lambda: Hierarchical(OkTopK(), 2), 2),
    'hierarchical chunk': (lambda: Hierarchical(ChunkAllReduce(4), 2), 2),
}


def worlds(sizes: Sequence[int] = WORLD_SIZES) -> list[tuple[str, int]]:
    """Every exchange with every world size that it serves."""
    return [
        (name, world_size)
        for name, (_, divisor) in EXCHANGES.items()
        for world_size in sizes
        if world_size % divisor == 0
    ]


class FirstLargest(Compressor):
    """Exact top-k that takes the first of equal elements, which torch.topk leaves open."""

    def select(self, corrected: Corrected, density: float) -> Sparse:
        flat = corrected.materialize()
        numel = len(flat)
        everything = gather(flat, torch.arange(numel))
        return cut(everything, keep(numel, density))[0] if numel else everything


class Case(NamedTuple):
    """One exchange.

    inputs: by rank, float32 ``[n]``: the corrected gradient, or a sparse message with zeros where
        nothing was selected.
    """

    name: str
    k: int
    inputs: list[Tensor]

    @property
    def numel(self) -> int:
        return len(self.inputs[0])

    @property
    def density(self) -> float:
        """At which ``k`` elements are selected."""
        return (self.k - 0.5) / self.numel


def largest(flat: Tensor, k: int) -> Tensor:
    """Zero but for the ``k`` largest elements, of which the first of equal ones."""
    return FirstLargest().compress(flat, (k - 0.5) / len(flat)).to_dense()


class Draw(NamedTuple):
    """What one rank's input is drawn from."""

    rank: int
    world_size: int
    generator: torch.Generator

    def normal(self, numel: int) -> Tensor:
        return torch.randn(numel, generator=self.generator)

    def ties(self, numel: int) -> Tensor:
        """From a small set without zero, so that many are equal and many sums cancel."""
        values = torch.tensor([-2.0, -1.0, 1.0, 2.0])
        return values[torch.randint(4, (numel,), generator=self.generator)]


def few(world_size: int) -> tuple[int, int]:
    """Fewer elements than ranks."""
    return max(world_size - 2, 1), max(world_size // 2 - 1, 1)


# Name: n and k, or a function that computes them from the world size; and the input of one rank.
KINDS: dict[str, tuple[tuple[int, int] | Callable, Callable[[Draw, int], Tensor]]] = {
    'normal': ((120, 24), lambda draw, n: draw.normal(n)),
    'odd sizes': ((67, 13), lambda draw, n: draw.normal(n)),
    'ties': ((80, 20), lambda draw, n: draw.ties(n)),
    'few ties': ((53, 7), lambda draw, n: draw.ties(n)),
    'one element': ((60, 1), lambda draw, n: draw.normal(n)),
    'all elements': ((40, 40), lambda draw, n: draw.normal(n)),
    'fewer elements than ranks': (few, lambda draw, n: draw.normal(n)),
    'the same positions': (
        (90, 10),
        lambda draw, n: draw.normal(n).where(torch.arange(n) % 9 == 4, 0.0),
    ),
    'disjoint positions': (
        (96, 12),
        lambda draw, n: draw.normal(n).where(torch.arange(n) % draw.world_size == draw.rank, 0.0),
    ),
    'all in one block': (
        (100, 30),
        lambda draw, n: draw.normal(n).where(torch.arange(n) >= 75, 0.0),
    ),
    'less than k': ((70, 20), lambda draw, n: largest(draw.normal(n), 1 + 7 * draw.rank % 19)),
    'some empty': ((70, 10), lambda draw, n: draw.normal(n) * (draw.rank % 3 == 1)),
    'all empty': ((50, 5), lambda draw, n: torch.zeros(n)),
}


def case_of(kind: str, world_size: int, corrected: bool, seed: int) -> Case:
    """One case.

    corrected: inputs are corrected gradients, in place of messages of their ``k`` largest elements.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(f'{kind} {world_size} {seed}'.encode()))
    sizes, content = KINDS[kind]
    numel, k = sizes(world_size) if callable(sizes) else sizes
    inputs = [content(Draw(rank, world_size, generator), numel) for rank in range(world_size)]
    if not corrected:
        inputs = [largest(flat, k) for flat in inputs]
    return Case(f'{kind}, seed {seed}', k, inputs)


@cache
def cases_of(
    world_size: int, corrected: bool, seeds: int = 1, kinds: Sequence[str] = tuple(KINDS)
) -> list[Case]:
    """One of every kind and seed."""
    return [case_of(kind, world_size, corrected, seed) for kind in kinds for seed in range(seeds)]


class Result(NamedTuple):
    """What one rank has after an exchange.

    total: float32 ``[n]``, the sum of the contributions.
    residual: float32 ``[n]``, what a Residual memory keeps of the input.
    contributions, non_finite: as the exchange returned them; copies.
    sent, received, messages: by the engine for this exchange, the first two in bytes.
    """

    total: Tensor
    residual: Tensor
    contributions: Sequence[Sparse]
    non_finite: bool
    sent: int
    received: int
    messages: int


def total_of(contributions: Sequence[Sparse]) -> Tensor:
    """Their sum, added in their order."""
    total = contributions[0].to_dense()
    for contribution in contributions[1:]:
        contribution.add_to(total)
    return total


def bucket_for(
    exchange: Exchange,
    gradient: Tensor,
    engine: Engine | None = None,
    density: float | None = None,
    buffers: Iterable[str] = (),
    momentum: float = 0.0,
) -> Bucket:
    """A bucket of one parameter with this gradient, memory tensors, and the exchange's state."""
    like, engine = bucket_of(gradient, buffers, momentum, density=density), engine or LocalEngine()
    parts = {**like.state.parts, 'exchange': exchange.state_for(like.spec)}
    members = [(member.parameter, member.group) for member in like.members]
    bucket = Bucket(like.spec, members, parts, engine.rank, engine.size)
    bucket.gradient.copy_(gradient)
    bucket.density = density
    return bucket


def is_dense(exchange: Exchange, codec: Codec = EXACT) -> bool:
    """Whether the exchange takes dense messages with this codec."""
    return Payload.SPARSE not in exchange.accepts or codec.indices == 'none'


def run_rank(
    exchange: Exchange,
    case: Case,
    engine: Engine,
    codec: Codec = EXACT,
    bucket: Bucket | None = None,
) -> Result:
    """One rank's part in one exchange.

    bucket: holds the exchange's state of the steps before; None for a first step.
    """
    if bucket is None:
        bucket = bucket_for(exchange, case.inputs[engine.rank], engine)
    bucket.density = case.density
    bucket.gradient.copy_(case.inputs[engine.rank])
    is_finite = exchange.prepare(bucket, engine, is_finite=True)
    corrected = bucket.gradient.clone()
    residual = corrected.clone()
    if is_dense(exchange, codec):
        selected = Sparse(corrected, None, case.numel)
    else:
        selected = gather(corrected, largest(corrected, case.k).nonzero().view(-1))
    traffic = engine.traffic
    before = traffic.sent, traffic.received, traffic.messages
    k = case.k if exchange.selects or not selected.is_dense else case.numel
    exchanged = exchange.reduce(selected, Context(bucket, k, codec, engine, is_finite))
    after = traffic.sent, traffic.received, traffic.messages
    # A dense message is the memory's own storage.
    assert torch.equal(bits(corrected), bits(residual))
    assert exchanged.sent is not None or not exchange.selects
    sent = selected if exchanged.sent is None else exchanged.sent
    if sent.is_dense:
        residual.zero_()
    else:
        residual.index_fill_(0, sent.indices, 0.0)
    if exchanged.error is not None:
        exchanged.error.add_to(residual)
    # The first dense contribution may lie in the bucket's total, which the next step overwrites.
    contributions = [part._replace(values=part.values.clone()) for part in exchanged.contributions]
    counted = (late - early for late, early in zip(after, before, strict=True))
    return Result(total_of(contributions), residual, contributions, exchanged.non_finite, *counted)


def run_all(
    make: Callable[[], Exchange],
    cases: Sequence[Case],
    codec: Codec = EXACT,
    consecutive: bool = False,
) -> list[list[Result]]:
    """By case and rank, in one simulation.

    consecutive: the cases are steps of one bucket; otherwise each is a first step.
    """

    def worker(engine):
        exchange, bucket, results = make(), None, []
        if consecutive:
            bucket = bucket_for(exchange, cases[0].inputs[engine.rank], engine)
        for case in cases:
            results.append(run_rank(exchange, case, engine, codec, bucket))
            exchange = exchange if consecutive else make()
        return results

    results = dgc.simulate(len(cases[0].inputs), worker)
    return [list(of_case) for of_case in zip(*results, strict=True)]


def assert_agree(case: Case, results: Sequence[Result]) -> None:
    """All ranks have the same contributions, bit for bit."""
    for one in results[1:]:
        pairs = zip(one.contributions, results[0].contributions, strict=True)
        for ours, first in pairs:
            assert torch.equal(bits(ours.values), bits(first.values)), case.name
            assert ours.is_dense == first.is_dense, case.name
            assert ours.is_dense or torch.equal(ours.indices, first.indices), case.name
        assert one.non_finite == results[0].non_finite, case.name


def bits(values: Tensor) -> Tensor:
    """Float32 as integers: a NaN equals itself."""
    return values.view(torch.int32)


def lost(case: Case, total: Tensor, residuals: Sequence[Tensor]) -> Tensor:
    """The sum of the inputs less the result and all residuals: float64 ``[n]``."""
    brought = torch.stack(case.inputs).double().sum(0)
    return brought - total.double() - torch.stack(list(residuals)).double().sum(0)


def assert_conserved(case: Case, results: Sequence[Result]) -> None:
    """Nothing is lost, and nothing counted twice."""
    gone = lost(case, results[0].total, [one.residual for one in results])
    assert float(gone.abs().max()) < 1e-5, case.name


CALLS = ('all_reduce', 'all_gather', 'send_recv', 'broadcast')


def record_calls(engine, log):
    """Log the engine's calls, and check that what is received has the length of what is sent."""

    def wrap(kind):
        call = getattr(engine, kind)

        def recorded(tensor, *others, **settings):
            length = None if kind == 'send_recv' else tensor.numel()
            log.append((kind, tensor.dtype, length))
            result = call(tensor, *others, **settings)
            if kind == 'send_recv' and result is not None:
                assert result.numel() == tensor.numel()
                assert result.dtype == tensor.dtype
            return result

        setattr(engine, kind, recorded)

    for kind in CALLS:
        wrap(kind)
