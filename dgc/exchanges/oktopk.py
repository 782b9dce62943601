"""Ok-Topk: split and reduce, balance and all-gather (Li and Hoefler, PPoPP 2022, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.engines.base import Engine
from dgc.exchanges.balance import Balance
from dgc.exchanges.base import Context, Exchange, Exchanged
from dgc.exchanges.kth_largest import kth_largest
from dgc.exchanges.truncation import Truncation
from dgc.exchanges.wire import Wire
from dgc.sparse import Sparse, cut, indices_of, join, merge
from dgc.state import Entries, Resize, Values

TOO_FEW, LOWER = 2 / 3, 0.992  # times k elements above the threshold; factor of the threshold then
TOO_MANY, RAISE = 4 / 3, 1.012


class OkTopK(Exchange):
    """Each rank sums one region; what is above a common threshold is gathered.

    The regions are such that the ranks have, on average, equally many elements to send in each. A
    rank sends the owner of a region its elements there, at most a ``P``-th of ``k``, the largest,
    in an order of destinations that starts with the next rank, so that no owner receives from all
    at once. What its sum holds above the threshold is evened out among the ranks and gathered; at
    most ``k`` in all. So no rank sends more than about ``6k`` numbers, whatever ``P`` is (section
    3.1).

    Unlike in the paper, a message is padded to its largest size, so that no length is exchanged,
    and the exact threshold comes from four histograms, not from gathering ``kP`` values.

    Args:
        threshold_period: Exchanges after which the threshold is exact again; in between it moves by
            about 1 % when more than 4/3 or less than 2/3 of ``k`` elements are above it.
        region_period: Exchanges after which the regions are computed anew. Where the number of
            ranks has changed, both are at once.

    Raises:
        ValueError: For a period below 1.
    """

    def __init__(self, threshold_period: int = 32, region_period: int = 64) -> None:
        if min(threshold_period, region_period) < 1:
            raise ValueError(
                'threshold_period and region_period must be at least 1, '
                f'got {threshold_period} and {region_period}'
            )
        self.threshold_period = threshold_period
        self.region_period = region_period

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare threshold, regions and counters, the same on all ranks."""
        return {'reused': Values(Resize.REPLICATED)}

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return at most about ``k`` elements of the sum: those above the threshold."""
        k, engine, numel = context.k, context.engine, selected.numel
        reused = context.state['reused']
        step, bounds = reused.get('step', 0), reused.get('bounds', [])
        # Of another number of ranks, as in a checkpoint: the threshold is one of other sums.
        is_other = len(bounds) != engine.size - 1
        # Regions (section 3.1.1).
        if step % self.region_period == 0 or is_other:
            bounds = region_bounds(indices_of(selected), numel, engine)
        # Split and reduce (Algorithm 1, line 2).
        truncation = Truncation(selected)
        share = context.wire(-(-k // engine.size))
        total = split_and_reduce(selected, bounds, share, truncation, engine)
        # Global threshold (line 3).
        threshold = reused.get('threshold', 0.0)
        if step % self.threshold_period == 0 or is_other or reused.get('k') != k:
            threshold = kth_largest(total.values, k, engine)
        chosen = above(total, threshold)
        counts = gather_counts(len(chosen.values), selected.values.device, engine)
        threshold *= correction(sum(counts), k)
        reused.update(step=step + 1, k=k, threshold=threshold, bounds=bounds)
        # Balance and all-gather (line 4).
        counts = trimmed(counts, k)
        chosen, _ = cut(chosen, counts[engine.rank])
        balance = Balance(counts)
        chosen = balance.even_out(chosen, context, truncation)
        wire = context.wire(balance.largest)
        message, rounding = wire.write(chosen)
        truncation.add(rounding)
        gathered = engine.all_gather(message)
        parts = wire.read_all(gathered)
        return truncation.exchanged(parts, join(parts, numel))

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return the bytes of ``3(P-1)`` messages of ``k/P`` elements: regions, balance and gather.

        For the balance it is an upper bound. Histograms and counts are not included.
        """
        share = codec.capacity(spec.numel, -(-k // world_size))
        return 3 * (world_size - 1) * share


def region_bounds(indices: Tensor, numel: int, engine: Engine) -> list[int]:
    """Return where the regions of ranks 1 … P-1 begin: the mean over the ranks of the positions
    that divide their own indices into ``P`` equal parts."""
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
    sparse: Sparse, bounds: Sequence[int], wire: Wire, truncation: Truncation, engine: Engine
) -> Sparse:
    """Return the sum of all ranks' elements in this rank's region, added in order of rank."""
    rank, size = engine.rank, engine.size
    regions = divided(sparse, bounds)
    parts = {rank: regions[rank]}
    for shift in range(1, size):
        ahead, behind = (rank + shift) % size, (rank - shift) % size
        part, rest = cut(regions[ahead], wire.k)
        truncation.add(rest)
        message, rounding = wire.write(part)
        truncation.add(rounding)
        parts[behind] = wire.read(engine.send_recv(message, ahead, behind), behind)
    return merge([parts[source] for source in range(size)])


def divided(sparse: Sparse, bounds: Sequence[int]) -> list[Sparse]:
    """Divide a message among the regions."""
    edges = torch.tensor(bounds, dtype=torch.int64, device=sparse.values.device)
    places = torch.searchsorted(indices_of(sparse), edges).tolist()
    counts = [end - begin for begin, end in pairwise([0, *places, len(sparse.values)])]
    pairs = zip(sparse.values.split(counts), indices_of(sparse).split(counts), strict=True)
    return [Sparse(values, indices, sparse.numel) for values, indices in pairs]


def above(sparse: Sparse, threshold: float) -> Sparse:
    """Return the elements at or above a threshold; a NaN is above any."""
    return sparse.at(~(sparse.values.abs() < threshold))


def gather_counts(count: int, device: torch.device, engine: Engine) -> list[int]:
    """Return every rank's ``count``."""
    ours = torch.tensor([count], dtype=torch.int32, device=device)
    return [int(other) for other in engine.all_gather(ours).view(-1)]


def correction(total: int, k: int) -> float:
    """Return the factor of the next step's threshold, where ``total`` elements exceeded this."""
    if total > TOO_MANY * k:
        return RAISE
    return LOWER if total < TOO_FEW * k else 1.0


def trimmed(counts: Sequence[int], k: int) -> list[int]:
    """Return how many elements each rank may pass on: at most ``k`` in all, but one of each rank
    that has any."""
    total = sum(counts)
    if total <= k:
        return list(counts)
    return [min(count, max(count * k // total, 1)) for count in counts]
