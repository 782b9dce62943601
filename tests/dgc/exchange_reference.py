"""Each exchange again, slow and plain, for the fast ones to be tested against.

One process, dense arrays, loops over rounds and workers. A message, or a sum on its way, is a
float32 ``[n]``, zero where it has no element, and a bool ``[n]`` that tells where it has one, for a
sum may be zero too. Of equal magnitudes the one of lower index counts as larger; a NaN is as large
as an infinity. Nothing is rounded, since nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Outcome(NamedTuple):
    """What an exchange comes to.

    total: float32 ``[n]``, the sum that all workers have in the end.
    delivered: bool ``[n]``, where it has elements.
    kept: float32 ``[n]`` each, by rank: what a worker's memory has in the end of what it brought.
    """

    total: Tensor
    delivered: Tensor
    kept: list[Tensor]


class Elements(NamedTuple):
    """Some of ``n`` elements: float32 ``values[n]``, and bool ``there[n]``."""

    values: Tensor
    there: Tensor


def all_gather(messages: Sequence[Tensor]) -> Outcome:
    """All messages, added in order of rank (Lin et al., ICLR 2018)."""
    total = nothing(messages[0])
    for message in messages:
        total = add(total, elements(message))
    return Outcome(*total, kept=[torch.zeros_like(message) for message in messages])


def gtopk(messages: Sequence[Tensor], k: int) -> Outcome:
    """gTop-k along a binomial tree (Shi et al., ICDCS 2019, Algorithms 2 and 3)."""
    sums = [elements(message) for message in messages]
    cuts: list[list[Elements]] = [[] for _ in messages]
    for gap in gaps(len(messages)):
        for rank in range(0, len(messages) - gap, 2 * gap):
            sums[rank], rest = cut(add(sums[rank], sums[rank + gap]), k)
            cuts[rank].append(rest)
    return settle(messages, cuts, sums[0])


def gtopk_doubling(messages: Sequence[Tensor], k: int) -> Outcome:
    """gTop-k by recursive doubling, in which 2^r workers make the same cut in round r: the lowest
    rank keeps it. What more workers there are than a power of two fold into the first ones."""
    sums = [elements(message) for message in messages]
    cuts: list[list[Elements]] = [[] for _ in messages]
    core = 1 << (len(messages).bit_length() - 1)
    for rank in range(len(messages) - core):
        sums[rank], rest = cut(add(sums[rank], sums[rank + core]), k)
        cuts[rank].append(rest)
    for gap in gaps(core):
        for low in (rank for rank in range(core) if rank % (2 * gap) < gap):
            merged, rest = cut(add(sums[low], sums[low + gap]), k)
            sums[low] = sums[low + gap] = merged
            if low % (2 * gap) == 0:
                cuts[low].append(rest)
    return settle(messages, cuts, sums[0])


@dataclass
class Size:
    """B-SAG's ``h`` for one block, from step to step (Zhao et al., ICDE 2024, section III-B).

    step: by which it changes. direction, streak: 1 for growth and -1, and how often in a row.
    """

    h: int
    step: int = 1
    direction: int = 0
    streak: int = 0

    def adapt(self, merged: int, limit: int, teams: int) -> None:
        """Grow where the sum had fewer elements than its ``limit``, shrink where it had more."""
        if merged == limit:
            return
        direction = 1 if merged < limit else -1
        if direction != self.direction:
            self.direction, self.streak = direction, 1
            self.step = max(self.step // 2, 1)
        else:
            self.streak += 1
            if self.streak % 2 == 0:
                self.step = min(2 * self.step, limit)
        self.h = min(max(self.h + direction * self.step, -(-limit // teams)), limit)


def spardl(
    corrected: Sequence[Tensor],
    k: int,
    teams: int = 1,
    sizes: list[Size] | None = None,
    residuals: str = 'global',
) -> Outcome:
    """SparDL (Zhao et al., ICDE 2024, arXiv 2304.00737).

    corrected: by rank, everything; the first ``P/teams`` workers are the first team.
    sizes: B-SAG's, one a block, changed in place; ``None`` for R-SAG.
    residuals: 'global', 'partial' or 'local' (section III-C).
    """
    numel, size = len(corrected[0]), len(corrected) // teams
    edges = [block * numel // size for block in range(size + 1)]
    blocks = [span(numel, edges[block], edges[block + 1]) for block in range(size)]
    limit = max(-(-k // size), 1)
    local = [flat.clone() for flat in corrected]
    taken = [torch.zeros(numel, dtype=torch.bool) for _ in corrected]
    own: list[Elements] = []
    for first in range(0, len(corrected), size):
        team = slice(first, first + size)
        own += spar_reduce_scatter(local[team], taken[team], blocks, limit)
    for place in range(size):
        owners = range(place, len(corrected), size)
        if sizes is None:
            r_sag(own, local, owners, limit)
        else:
            b_sag(own, local, owners, limit, sizes[place])
    result = nothing(corrected[0])
    for part in own[:size]:
        result = add(result, part)
    if residuals == 'global':  # where it arrived, what lies in the blocks at the end
        kept = [
            torch.where(result.there, blocks_now, flat)
            for flat, blocks_now in zip(corrected, local, strict=True)
        ]
    elif residuals == 'partial':  # what did not arrive
        kept = [flat.where(~result.there, 0.0) for flat in corrected]
    else:  # what was not sent
        kept = [flat.where(~sent, 0.0) for flat, sent in zip(corrected, taken, strict=True)]
    return Outcome(*result, kept)


def spar_reduce_scatter(
    local: Sequence[Tensor], taken: Sequence[Tensor], blocks: Sequence[Tensor], limit: int
) -> list[Elements]:
    """Spar-Reduce-Scatter (Algorithm 1) in one team: by place, what is left of the sum of the
    worker's block. ``local`` and ``taken``, by place, are changed."""
    size = len(local)
    for gap in reversed(gaps(size)):
        bags: list[list[Elements]] = [[] for _ in local]
        for place in range(size):
            for ahead in range(gap, min(2 * gap, size)):
                block = blocks[(place + ahead) % size]
                bags[place].append(take(local[place], taken[place], block, limit))
        for place in range(size):
            for part in bags[place]:
                local[(place + gap) % size].add_(part.values)
    return [take(local[place], taken[place], blocks[place], limit) for place in range(size)]


def take(local: Tensor, taken: Tensor, block: Tensor, limit: int) -> Elements:
    """The largest of a block, which are noted as taken, and no longer in ``local``."""
    largest, _ = cut(Elements(local.where(block, 0.0), block), limit)
    local[largest.there] = 0
    taken |= largest.there
    return largest


def r_sag(own: list[Elements], local: Sequence[Tensor], owners: Sequence[int], limit: int) -> None:
    """Spar-All-Gather by recursive doubling: ``own`` becomes the sum over the ``owners``. A cut is
    shared out among those who made the same."""
    for gap in gaps(len(owners)):
        for team in (team for team in range(len(owners)) if team % (2 * gap) < gap):
            pair = owners[team], owners[team + gap]
            merged, rest = cut(add(own[pair[0]], own[pair[1]]), limit)
            for rank in pair:
                own[rank] = merged
                local[rank].add_(rest.values / (2 * gap))


def b_sag(
    own: list[Elements], local: Sequence[Tensor], owners: Sequence[int], limit: int, size: Size
) -> None:
    """Spar-All-Gather by Bruck's all-gather of everybody's ``h`` largest."""
    merged = nothing(local[0])
    for rank in owners:
        sent, rest = cut(own[rank], size.h)
        local[rank].add_(rest.values)
        merged = add(merged, sent)
    size.adapt(int(merged.there.sum()), limit, len(owners))
    merged, rest = cut(merged, limit)
    for rank in owners:
        own[rank] = merged
        local[rank].add_(rest.values / len(owners))


def oktopk(
    messages: Sequence[Tensor], k: int, bounds: Sequence[int], threshold: float | None = None
) -> tuple[Outcome, float]:
    """Ok-Topk (Li and Hoefler, PPoPP 2022, Algorithm 1), and the threshold for the next step.

    bounds: where the regions of ranks 1 … P-1 begin; see ``region_bounds``.
    threshold: of the sum's elements; ``None`` for the exact one.
    """
    numel, share = len(messages[0]), -(-k // len(messages))
    edges = [0, *bounds, numel]
    cuts: list[list[Elements]] = [[] for _ in messages]
    sums = []
    for owner in range(len(messages)):
        region = span(numel, edges[owner], edges[owner + 1])
        total = nothing(messages[0])
        for rank, message in enumerate(messages):
            part = Elements(message.where(region, 0.0), (message != 0) & region)
            if rank != owner:
                part, rest = cut(part, share)
                cuts[rank].append(rest)
            total = add(total, part)
        sums.append(total)
    if threshold is None:
        threshold = exact_threshold(sums, k)
    above = [part.there & ~(part.values.abs() < threshold) for part in sums]
    count = sum(int(mask.sum()) for mask in above)
    result = nothing(messages[0])
    for part, mask in zip(sums, above, strict=True):
        chosen = Elements(part.values.where(mask, 0.0), mask)
        if count > k:  # everyone the same share, but one at least
            chosen, _ = cut(chosen, max(int(mask.sum()) * k // count, 1))
        result = add(result, chosen)
    factor = 1.012 if count > 4 / 3 * k else 0.992 if count < 2 / 3 * k else 1.0
    return settle(messages, cuts, result), threshold * factor


def region_bounds(messages: Sequence[Tensor]) -> list[int]:
    """Where the regions of ranks 1 … P-1 begin: each worker would have as many elements in each,
    and it is the mean of what they would have (section 3.1.1)."""
    size, numel = len(messages), len(messages[0])
    bounds = []
    for region in range(1, size):
        wishes = []
        for message in messages:
            places = message.nonzero().view(-1).tolist()
            everywhere = region * numel // size
            wishes.append(places[region * len(places) // size] if places else everywhere)
        bounds.append(sum(wishes) // size)
    return bounds


def exact_threshold(sums: Sequence[Elements], k: int) -> float:
    """The k-th largest magnitude of all; 0 where there are fewer."""
    magnitudes = torch.cat([part.values[part.there].abs() for part in sums])
    return float(magnitudes.sort(descending=True).values[k - 1]) if len(magnitudes) >= k else 0.0


def hierarchical(
    gradients: Sequence[Tensor],
    local_size: int,
    exchange: Callable[[list[Tensor]], Outcome],
) -> Outcome:
    """Sums inside machines, then any other exchange among the first workers of each (Sun et al.,
    arXiv 1902.06855). The others keep nothing."""
    sums = [gradient.clone() for gradient in gradients]
    for first in range(0, len(sums), local_size):
        for gap in gaps(local_size):
            for rank in range(first, first + local_size - gap, 2 * gap):
                sums[rank] += sums[rank + gap]
    outcome = exchange(sums[::local_size])
    kept = [torch.zeros_like(gradient) for gradient in gradients]
    kept[::local_size] = outcome.kept
    return outcome._replace(kept=kept)


def chunk_all_reduce(corrected: Sequence[Tensor], k: int, chunk: int) -> Outcome:
    """The ⌈k/c⌉ chunks of the largest L1 norms, summed over the workers (Sun et al., arXiv
    1902.06855)."""
    numel = len(corrected[0])
    spans = [span(numel, begin, begin + chunk) for begin in range(0, numel, chunk)]
    norms = torch.zeros(len(spans))
    for flat in corrected:
        norms += torch.stack([flat[mask].abs().sum() for mask in spans])
    chosen, _ = cut(Elements(norms, torch.ones(len(spans), dtype=torch.bool)), -(-k // chunk))
    delivered = torch.zeros(numel, dtype=torch.bool)
    for number in chosen.there.nonzero():
        delivered |= spans[number]
    total = torch.zeros(numel)
    for flat in corrected:
        total += flat.where(delivered, 0.0)
    return Outcome(total, delivered, [flat.where(~delivered, 0.0) for flat in corrected])


def settle(
    messages: Sequence[Tensor], cuts: Sequence[Sequence[Elements]], result: Elements
) -> Outcome:
    """Where the result has an element, a worker keeps what it cut; elsewhere its own message."""
    kept = []
    for message, mine in zip(messages, cuts, strict=True):
        total = torch.zeros_like(message)
        for rest in mine:
            total += rest.values
        kept.append(torch.where(result.there, total, message))
    return Outcome(*result, kept)


def cut(sparse: Elements, k: int) -> tuple[Elements, Elements]:
    """The ``k`` largest elements, and the others."""
    places = sparse.there.nonzero().view(-1)
    magnitudes = sparse.values[places].abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    order = magnitudes.sort(descending=True, stable=True).indices
    kept = torch.zeros_like(sparse.there)
    kept[places[order[:k]]] = True
    rest = sparse.there & ~kept
    return Elements(sparse.values.where(kept, 0.0), kept), Elements(
        sparse.values.where(rest, 0.0), rest
    )


def add(one: Elements, other: Elements) -> Elements:
    """Their sum."""
    return Elements(one.values + other.values, one.there | other.there)


def elements(message: Tensor) -> Elements:
    """A message's, which are not zero."""
    return Elements(message, message != 0)


def nothing(like: Tensor) -> Elements:
    """No elements, of as many."""
    return Elements(torch.zeros_like(like), torch.zeros_like(like, dtype=torch.bool))


def span(numel: int, begin: int, end: int) -> Tensor:
    """bool ``[n]``: from ``begin`` to ``end``, exclusive."""
    places = torch.arange(numel)
    return (places >= begin) & (places < end)


def gaps(workers: int) -> list[int]:
    """1, 2, 4, … below ``workers``."""
    return [2**r for r in range(workers) if 2**r < workers]
