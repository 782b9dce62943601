"""Plain implementations of the exchanges, written from the papers: the fast ones are tested
against them.

One process, dense arrays, loops over rounds and ranks. A message or a partial sum is a float32
``[n]``, zero where it has no element, and a bool ``[n]`` that is true where it has one, because a
sum may be zero too. Of equal magnitudes the one of lower index counts as larger; a NaN is as large
as an infinity. No codec is involved, so there is no quantization error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Outcome(NamedTuple):
    """The result of an exchange.

    total: float32 ``[n]``, the sum that all ranks receive.
    delivered: bool ``[n]``, where it has elements.
    residuals: by rank, float32 ``[n]``: what the rank's memory keeps of its input.
    """

    total: Tensor
    delivered: Tensor
    residuals: list[Tensor]


class Elements(NamedTuple):
    """Some of ``n`` elements: float32 ``values[n]``, and bool ``there[n]``."""

    values: Tensor
    there: Tensor


def all_gather(messages: Sequence[Tensor]) -> Outcome:
    """All messages, added in order of rank (Lin et al., ICLR 2018)."""
    total = nothing(messages[0])
    for message in messages:
        total = add(total, elements(message))
    return Outcome(*total, residuals=[torch.zeros_like(message) for message in messages])


def gtopk(messages: Sequence[Tensor], k: int) -> Outcome:
    """gTop-k along a binomial tree (Shi et al., ICDCS 2019, Algorithms 2 and 3)."""
    sums = [elements(message) for message in messages]
    cuts: list[list[Elements]] = [[] for _ in messages]
    for gap in gaps(len(messages)):
        for rank in range(0, len(messages) - gap, 2 * gap):
            sums[rank], rest = cut(add(sums[rank], sums[rank + gap]), k)
            cuts[rank].append(rest)
    return with_residuals(messages, cuts, sums[0])


def gtopk_doubling(messages: Sequence[Tensor], k: int) -> Outcome:
    """gTop-k by recursive doubling.

    In round r, 2^r ranks make the same cut, and the lowest of them keeps it. The ranks beyond a
    power of two add their messages to those of the first ranks beforehand.
    """
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
    return with_residuals(messages, cuts, sums[0])


@dataclass
class Size:
    """B-SAG's ``h`` of one block over the steps (Zhao et al., ICDE 2024, section III-B).

    step: by how much it changes. direction: 1 while it grows, -1 while it shrinks. streak: the
    number of moves in the same direction.
    """

    h: int
    step: int = 1
    direction: int = 0
    streak: int = 0

    def adapt(self, merged: int, limit: int, teams: int) -> None:
        """Grow where the sum had fewer than ``limit`` elements, shrink where it had more."""
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

    corrected: by rank, the corrected gradient; the first ``P/teams`` ranks are the first team.
    sizes: of B-SAG, one per block, changed in place; ``None`` for R-SAG.
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
    if residuals == 'global':  # at an index of the result, what remains in the blocks
        kept = [
            torch.where(result.there, blocks_now, flat)
            for flat, blocks_now in zip(corrected, local, strict=True)
        ]
    elif residuals == 'partial':  # what is not in the result
        kept = [flat.where(~result.there, 0.0) for flat in corrected]
    else:  # what was not sent
        kept = [flat.where(~sent, 0.0) for flat, sent in zip(corrected, taken, strict=True)]
    return Outcome(*result, kept)


def spar_reduce_scatter(
    local: Sequence[Tensor], taken: Sequence[Tensor], blocks: Sequence[Tensor], limit: int
) -> list[Elements]:
    """Spar-Reduce-Scatter (Algorithm 1) in one team; ``local`` and ``taken`` are changed in place.

    Returns:
        By place in the team, the truncated sum of the block that the rank owns.
    """
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
    """The largest elements of a block: marked in ``taken``, and set to zero in ``local``."""
    largest, _ = cut(Elements(local.where(block, 0.0), block), limit)
    local[largest.there] = 0
    taken |= largest.there
    return largest


def r_sag(own: list[Elements], local: Sequence[Tensor], owners: Sequence[int], limit: int) -> None:
    """Spar-All-Gather by recursive doubling: ``own`` becomes the sum over the ``owners``.

    Ranks that make the same cut each keep an equal part of it.
    """
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
    """Spar-All-Gather by Bruck's all-gather of the ``h`` largest elements of every owner."""
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
    """Ok-Topk (Li and Hoefler, PPoPP 2022, Algorithm 1), and the threshold of the next step.

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
        if count > k:  # each rank the same fraction, but at least one element
            chosen, _ = cut(chosen, max(int(mask.sum()) * k // count, 1))
        result = add(result, chosen)
    factor = 1.012 if count > 4 / 3 * k else 0.992 if count < 2 / 3 * k else 1.0
    return with_residuals(messages, cuts, result), threshold * factor


def region_bounds(messages: Sequence[Tensor]) -> list[int]:
    """Where the regions of ranks 1 … P-1 begin (section 3.1.1).

    The mean over the ranks of the bounds that divide a rank's own elements into equal parts.
    """
    size, numel = len(messages), len(messages[0])
    bounds = []
    for region in range(1, size):
        own_bounds = []
        for message in messages:
            places = message.nonzero().view(-1).tolist()
            even = region * numel // size
            own_bounds.append(places[region * len(places) // size] if places else even)
        bounds.append(sum(own_bounds) // size)
    return bounds


def exact_threshold(sums: Sequence[Elements], k: int) -> float:
    """The k-th largest magnitude among all sums; 0 where there are fewer elements."""
    magnitudes = torch.cat([part.values[part.there].abs() for part in sums])
    return float(magnitudes.sort(descending=True).values[k - 1]) if len(magnitudes) >= k else 0.0


def hierarchical(
    gradients: Sequence[Tensor],
    local_size: int,
    exchange: Callable[[list[Tensor]], Outcome],
) -> Outcome:
    """Sums inside machines, then any other exchange among the first ranks of the machines (Sun et
    al., arXiv 1902.06855). The residuals of the other ranks are zero."""
    sums = [gradient.clone() for gradient in gradients]
    for first in range(0, len(sums), local_size):
        for gap in gaps(local_size):
            for rank in range(first, first + local_size - gap, 2 * gap):
                sums[rank] += sums[rank + gap]
    outcome = exchange(sums[::local_size])
    residuals = [torch.zeros_like(gradient) for gradient in gradients]
    residuals[::local_size] = outcome.residuals
    return outcome._replace(residuals=residuals)


def chunk_all_reduce(corrected: Sequence[Tensor], k: int, chunk: int) -> Outcome:
    """The ⌈k/c⌉ chunks of the largest L1 norms, summed over the ranks (Sun et al., arXiv
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


def with_residuals(
    messages: Sequence[Tensor], cuts: Sequence[Sequence[Elements]], result: Elements
) -> Outcome:
    """At an index of the result, a rank keeps what it cut; elsewhere its own message."""
    residuals = []
    for message, mine in zip(messages, cuts, strict=True):
        total = torch.zeros_like(message)
        for rest in mine:
            total += rest.values
        residuals.append(torch.where(result.there, total, message))
    return Outcome(*result, residuals)


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
    """Those elements of a message that are not zero."""
    return Elements(message, message != 0)


def nothing(like: Tensor) -> Elements:
    """No elements of ``[n]``, the length of ``like``."""
    return Elements(torch.zeros_like(like), torch.zeros_like(like, dtype=torch.bool))


def span(numel: int, begin: int, end: int) -> Tensor:
    """bool ``[n]``: from ``begin`` to ``end``, exclusive."""
    places = torch.arange(numel)
    return (places >= begin) & (places < end)


def gaps(size: int) -> list[int]:
    """1, 2, 4, … below ``size``."""
    return [2**r for r in range(size) if 2**r < size]
