"""Ok-Topk: split and reduce, balance and all-gather (Li and Hoefler, PPoPP 2022, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors.base import keep
from dgc.engines.base import Engine
from dgc.exchanges.balance import Balance
from dgc.exchanges.base import Exchange, Exchanged
from dgc.exchanges.kth_largest import kth_largest
from dgc.exchanges.ledger import Ledger
from dgc.exchanges.wire import Wire
from dgc.sparse import Sparse, cut, indices_of, join, merge

TOO_FEW, LOWER = 2 / 3, 0.992  # of k elements above the threshold, and its next step then
TOO_MANY, RAISE = 4 / 3, 1.012


@dataclass
class State:
    """What is reused from step to step, of one bucket.

    step: exchanges so far. k: elements kept at the last one. threshold: of the sum's elements.
    bounds: where the regions of ranks 1 … P-1 begin.
    """

    step: int = 0
    k: int = 0
    threshold: float = 0.0
    bounds: list[int] = field(default_factory=list)


class OkTopK(Exchange):
    """Each worker sums one region; what is above a common threshold is gathered.

    The regions are those in which the workers have, on average, as many elements to send. A worker
    sends the owner of a region its elements there, at most a ``P``-th of ``k``, the largest, in an
    order of destinations that starts with the next rank, so that no owner is overrun. What its sum
    holds above the threshold is evened out among the workers and gathered; at most ``k`` in all.
    So no worker sends more than about ``6k`` numbers, whatever ``P`` is (section 3.1).

    Unlike in the paper, a message is padded to its largest size, so that lengths need not be asked
    for, and the exact threshold comes from four histograms, not from gathering ``kP`` values.

    threshold_period: exchanges after which the threshold is exact again; in between it is moved by
        small steps when more than 4/3 or less than 2/3 of ``k`` are above.
    region_period: exchanges after which the regions are drawn anew.
    """

    def __init__(self, threshold_period: int = 32, region_period: int = 64) -> None:
        if min(threshold_period, region_period) < 1:
            raise ValueError(
                'threshold_period and region_period must be at least 1, '
                f'got {threshold_period} and {region_period}'
            )
        self.threshold_period = threshold_period
        self.region_period = region_period
        self._states: dict[str, State] = {}

    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """At most about ``k`` elements of the sum of all: those above the threshold."""
        k = keep(bucket.numel, bucket.ratio)
        state = self._states.setdefault(bucket.name, State())
        if state.step % self.region_period == 0 or len(state.bounds) != engine.size - 1:
            state.bounds = region_bounds(indices_of(sparse), bucket.numel, engine)
        ledger = Ledger(sparse)
        share = Wire(bucket, -(-k // engine.size), codec)
        total = split_and_reduce(sparse, state.bounds, share, ledger, engine)
        if state.step % self.threshold_period == 0 or state.k != k:
            state.threshold = kth_largest(total.values, k, engine)
        chosen = above(total, state.threshold)
        counts = gather_counts(len(chosen.values), sparse.values.device, engine)
        state.threshold *= correction(sum(counts), k)
        state.step, state.k = state.step + 1, k
        counts = trimmed(counts, k)
        chosen, _ = cut(chosen, counts[engine.rank])
        balance = Balance(counts)
        chosen = balance.even_out(chosen, bucket, codec, ledger, engine)
        wire = Wire(bucket, balance.largest, codec)
        message, rounding = wire.write(chosen)
        ledger.cut(rounding)
        gathered = engine.all_gather(message)
        parts = [wire.read(part, rank) for rank, part in enumerate(gathered)]
        return ledger.settle(parts, join(parts, bucket.numel))

    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """``3(P-1)`` messages of ``k/P`` elements: shares of regions, the gather, and as much again
        for evening out as there can be. The thresholds' small change is left out."""
        return 3 * (workers - 1) * codec.capacity(numel, -(-k // workers))

    def state_dict(self) -> dict[str, Any]:
        """Thresholds and regions, by bucket."""
        return {'states': {name: asdict(state) for name, state in self._states.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        saved = state.get('states', {})
        self._states = {name: State(**numbers) for name, numbers in saved.items()}


def region_bounds(indices: Tensor, numel: int, engine: Engine) -> list[int]:
    """Where the regions of ranks 1 … P-1 begin: the mean over the workers of the places that part
    their own indices into ``P`` equal numbers."""
    if engine.size == 1:
        return []
    ranks = torch.arange(1, engine.size, device=indices.device)
    if len(indices):
        bounds = indices[ranks * len(indices) // engine.size]
    else:
        bounds = ranks * numel // engine.size
    bounds = engine.all_reduce(bounds.clone()) // engine.size
    return [int(bound) for bound in bounds]


def split_and_reduce(
    sparse: Sparse, bounds: Sequence[int], wire: Wire, ledger: Ledger, engine: Engine
) -> Sparse:
    """The sum of the workers' elements in this worker's region, in order of rank."""
    rank, size = engine.rank, engine.size
    regions = divided(sparse, bounds)
    parts = {rank: regions[rank]}
    for shift in range(1, size):
        ahead, behind = (rank + shift) % size, (rank - shift) % size
        part, rest = cut(regions[ahead], wire.k)
        ledger.cut(rest)
        message, rounding = wire.write(part)
        ledger.cut(rounding)
        parts[behind] = wire.read(engine.send_recv(message, ahead, behind), behind)
    return merge([parts[source] for source in range(size)])


def divided(sparse: Sparse, bounds: Sequence[int]) -> list[Sparse]:
    """The parts of a message in each region."""
    edges = torch.tensor(bounds, dtype=torch.int64, device=sparse.values.device)
    places = torch.searchsorted(indices_of(sparse), edges).tolist()
    counts = [end - begin for begin, end in pairwise([0, *places, len(sparse.values)])]
    pairs = zip(sparse.values.split(counts), indices_of(sparse).split(counts), strict=True)
    return [Sparse(values, indices, sparse.numel) for values, indices in pairs]


def above(sparse: Sparse, threshold: float) -> Sparse:
    """The elements at or above a threshold; a NaN is above any."""
    return sparse.at(~(sparse.values.abs() < threshold))


def gather_counts(count: int, device: torch.device, engine: Engine) -> list[int]:
    """Every worker's ``count``, by rank."""
    ours = torch.tensor([count], dtype=torch.int32, device=device)
    return [int(other) for other in engine.all_gather(ours).view(-1)]


def correction(total: int, k: int) -> float:
    """What the threshold is multiplied by for the next time, when ``total`` were above it."""
    if total > TOO_MANY * k:
        return RAISE
    return LOWER if total < TOO_FEW * k else 1.0


def trimmed(counts: Sequence[int], k: int) -> list[int]:
    """How many each may pass on, so that there are at most ``k``, but one of each that has any."""
    total = sum(counts)
    if total <= k:
        return list(counts)
    return [min(count, max(count * k // total, 1)) for count in counts]
