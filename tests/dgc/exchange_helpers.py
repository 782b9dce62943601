"""What workers bring to an exchange, and what they have afterwards."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from dgc_helpers import bucket_of
from torch import Tensor

import dgc
from dgc.codec import Codec
from dgc.compressors.base import Compressor, keep
from dgc.exchanges import (
    AllGather,
    Bruck,
    ChunkAllReduce,
    Exchange,
    GTopK,
    GTopKDoubling,
    Hierarchical,
    OkTopK,
    SparDL,
)
from dgc.sparse import Sparse, cut, gather

EXACT = Codec('fp32', 'int64')
WORKERS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)

# Name: what makes a fresh exchange, and what the number of workers is a multiple of.
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


def worlds(sizes: Sequence[int] = WORKERS) -> list[tuple[str, int]]:
    """Every exchange with every number of workers that it serves."""
    return [
        (name, workers)
        for name, (_, divisor) in EXCHANGES.items()
        for workers in sizes
        if workers % divisor == 0
    ]


class FirstLargest(Compressor):
    """Exact top-k that takes the first of equal elements, which torch.topk leaves open."""

    def compress(self, corrected: Tensor, ratio: float) -> Sparse:
        numel = len(corrected)
        whole = gather(corrected, torch.arange(numel))
        return cut(whole, keep(numel, ratio))[0] if numel else whole


class Case(NamedTuple):
    """What workers bring, by rank, float32 ``[n]`` each: all of it, or zero where not sent."""

    name: str
    k: int
    inputs: list[Tensor]

    @property
    def numel(self) -> int:
        return len(self.inputs[0])

    @property
    def ratio(self) -> float:
        """That keeps ``k``."""
        return (self.k - 0.5) / self.numel


def largest(flat: Tensor, k: int) -> Tensor:
    """Zero but for the ``k`` largest, of which the first of equal ones."""
    return FirstLargest().compress(flat, (k - 0.5) / len(flat)).to_dense()


class Draw(NamedTuple):
    """What one worker's share is drawn from: its rank, the number of workers, and chance."""

    rank: int
    workers: int
    chance: torch.Generator

    def normal(self, numel: int) -> Tensor:
        return torch.randn(numel, generator=self.chance)

    def ties(self, numel: int) -> Tensor:
        """From a small set without zero, so that many are equal and many sums cancel."""
        values = torch.tensor([-2.0, -1.0, 1.0, 2.0])
        return values[torch.randint(4, (numel,), generator=self.chance)]


def few(workers: int) -> tuple[int, int]:
    """Fewer elements than workers."""
    return max(workers - 2, 1), max(workers // 2 - 1, 1)


# Name: n and k, or how they come of the number of workers, and what one of them brings.
KINDS: dict[str, tuple[tuple[int, int] | Callable, Callable[[Draw, int], Tensor]]] = {
    'normal': ((120, 24), lambda draw, n: draw.normal(n)),
    'odd sizes': ((67, 13), lambda draw, n: draw.normal(n)),
    'ties': ((80, 20), lambda draw, n: draw.ties(n)),
    'few ties': ((53, 7), lambda draw, n: draw.ties(n)),
    'one element': ((60, 1), lambda draw, n: draw.normal(n)),
    'all elements': ((40, 40), lambda draw, n: draw.normal(n)),
    'fewer elements than workers': (few, lambda draw, n: draw.normal(n)),
    'the same places': (
        (90, 10),
        lambda draw, n: draw.normal(n).where(torch.arange(n) % 9 == 4, 0.0),
    ),
    'places of their own': (
        (96, 12),
        lambda draw, n: draw.normal(n).where(torch.arange(n) % draw.workers == draw.rank, 0.0),
    ),
    'all in one block': (
        (100, 30),
        lambda draw, n: draw.normal(n).where(torch.arange(n) >= 75, 0.0),
    ),
    'less than k': ((70, 20), lambda draw, n: largest(draw.normal(n), 1 + 7 * draw.rank % 19)),
    'some empty': ((70, 10), lambda draw, n: draw.normal(n) * (draw.rank % 3 == 1)),
    'all empty': ((50, 5), lambda draw, n: torch.zeros(n)),
}


def case_of(kind: str, workers: int, whole: bool, seed: int) -> Case:
    """One case; without the ``whole``, only the ``k`` largest of each worker."""
    chance = torch.Generator().manual_seed(zlib.crc32(f'{kind} {workers} {seed}'.encode()))
    sizes, content = KINDS[kind]
    numel, k = sizes(workers) if callable(sizes) else sizes
    inputs = [content(Draw(rank, workers, chance), numel) for rank in range(workers)]
    if not whole:
        inputs = [largest(flat, k) for flat in inputs]
    return Case(f'{kind}, seed {seed}', k, inputs)


@cache
def cases_of(
    workers: int, whole: bool, seeds: int = 1, kinds: Sequence[str] = tuple(KINDS)
) -> list[Case]:
    """One of every kind and seed."""
    return [case_of(kind, workers, whole, seed) for kind in kinds for seed in range(seeds)]


class Ended(NamedTuple):
    """What one worker has in the end.

    total, kept: float32 ``[n]``. parts: as the exchange returned them.
    sent, received, messages: by the engine for this exchange, the first two in bytes.
    """

    total: Tensor
    kept: Tensor
    parts: Sequence[Sparse]
    sent: int
    received: int
    messages: int


def total_of(parts: Sequence[Sparse]) -> Tensor:
    """Their sum, added in their order."""
    total = parts[0].to_dense()
    for part in parts[1:]:
        part.add_to(total)
    return total


def bring(exchange: Exchange, case: Case, engine: dgc.Engine, codec: Codec = EXACT) -> Ended:
    """One worker's part in one exchange; it keeps what a Residual memory would."""
    bucket = bucket_of(case.inputs[engine.rank], ratio=case.ratio)
    exchange.prepare(bucket, engine, healthy=True)
    kept = bucket.gradient.clone()
    if exchange.selects:
        message = Sparse(kept, None, case.numel)
    else:
        message = gather(kept, largest(kept, case.k).nonzero().view(-1))
    traffic = engine.traffic
    before = traffic.sent, traffic.received, traffic.messages
    parts, left_out, sent = exchange.sum(bucket, message, codec, engine)
    after = traffic.sent, traffic.received, traffic.messages
    assert sent is not None or not exchange.selects
    kept.index_fill_(0, (message if sent is None else sent).indices, 0.0)
    if left_out is not None:
        left_out.add_to(kept)
    counted = (late - early for late, early in zip(after, before, strict=True))
    return Ended(total_of(parts), kept, parts, *counted)


def bring_all(
    make: Callable[[], Exchange],
    cases: Sequence[Case],
    codec: Codec = EXACT,
    in_a_row: bool = False,
) -> list[list[Ended]]:
    """By case and rank, in one simulation; each with a fresh exchange, or all with the same."""

    def worker(engine):
        once = make()
        return [bring(once if in_a_row else make(), case, engine, codec) for case in cases]

    return [list(ended) for ended in zip(*dgc.simulate(len(cases[0].inputs), worker), strict=True)]


def assert_agree(case: Case, ended: Sequence[Ended]) -> None:
    """All workers have the same parts, bit for bit."""
    for one in ended[1:]:
        for ours, first in zip(one.parts, ended[0].parts, strict=True):
            assert torch.equal(bits(ours.values), bits(first.values)), case.name
            assert ours.is_dense == first.is_dense, case.name
            assert ours.is_dense or torch.equal(ours.indices, first.indices), case.name


def bits(values: Tensor) -> Tensor:
    """float32 as integers: a NaN equals itself."""
    return values.view(torch.int32)


def lost(case: Case, total: Tensor, kept: Sequence[Tensor]) -> Tensor:
    """What all have brought, less what came of it: float64 ``[n]``."""
    brought = torch.stack(case.inputs).double().sum(0)
    return brought - total.double() - torch.stack(list(kept)).double().sum(0)


def assert_conserved(case: Case, ended: Sequence[Ended]) -> None:
    """Nothing is lost, and nothing counted twice."""
    gone = lost(case, ended[0].total, [one.kept for one in ended])
    assert float(gone.abs().max()) < 1e-5, case.name
