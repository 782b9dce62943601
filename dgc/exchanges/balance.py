"""Ok-Topk's balance: elements in ascending regions, spread evenly before they are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from dgc.exchanges.base import Context
from dgc.exchanges.truncation import Truncation
from dgc.sparse import Sparse, indices_of, join

Span = tuple[int, int]  # first and last (exclusive) among all ranks' elements


class Balance:
    """How ``counts`` elements, by rank, are evened out; computed identically on all ranks.

    All elements in order of rank make one list. A rank has a span of it, and should have an equal
    one; where its span overlaps another rank's target, elements are sent. A gather is padded to the
    longest part, so that saves bytes unless the parts are nearly equal or few.

    Attributes:
        largest: The largest number of elements of a rank afterwards; at least 1.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self._size = size = len(counts)
        have, total = spans(counts), sum(counts)
        want = [(rank * total // size, (rank + 1) * total // size) for rank in range(size)]
        even, uneven = -(-total // size), max(counts)
        self._begin = [begin for begin, _ in have]
        self._moves = overlaps(have, want)
        self._paddings: dict[int, int] = {}
        for (source, target), (begin, end) in self._moves.items():
            shift = (target - source) % size
            self._paddings[shift] = max(self._paddings.get(shift, 0), end - begin)
        self._paddings.pop(0, None)
        saves = sum(self._paddings.values()) + (size - 1) * even < (size - 1) * uneven
        if not saves:
            self._moves, self._paddings = overlaps(have, have), {}
        self.largest = max(even if saves else uneven, 1)

    def even_out(self, sparse: Sparse, context: Context, truncation: Truncation) -> Sparse:
        """Collect this rank's target span of the list from the ranks that have it."""
        engine, size = context.engine, self._size
        rank = engine.rank
        idle = context.wire(0).blank()
        parts = [self._part(sparse, rank, rank)]
        for shift in range(1, size):
            ahead, behind = (rank + shift) % size, (rank - shift) % size
            if shift not in self._paddings:
                engine.send_recv(idle, None, None)
                continue
            wire = context.wire(self._paddings[shift])
            message = wire.blank()
            if (rank, ahead) in self._moves:
                message, rounding = wire.write(self._part(sparse, rank, ahead))
                truncation.add(rounding)
            received = engine.send_recv(
                message,
                ahead if (rank, ahead) in self._moves else None,
                behind if (behind, rank) in self._moves else None,
            )
            if received is not None:
                parts.append(wire.read(received, behind))
        return join(parts, sparse.numel)

    def _part(self, sparse: Sparse, source: int, target: int) -> Sparse:
        """Return the elements of ``source`` that go to ``target``."""
        begin, end = self._moves.get((source, target), (0, 0))
        first = self._begin[source] if end > begin else 0
        span = slice(begin - first, end - first)
        return Sparse(sparse.values[span], indices_of(sparse)[span], sparse.numel)


def spans(counts: Sequence[int]) -> list[Span]:
    """Return the spans of ``counts`` elements, one after another."""
    return [(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True)]


def overlaps(have: Sequence[Span], want: Sequence[Span]) -> dict[tuple[int, int], Span]:
    """Return the overlaps of two ascending lists of spans, by their numbers."""
    found: dict[tuple[int, int], Span] = {}
    source = target = 0
    while source < len(have) and target < len(want):
        begin = max(have[source][0], want[target][0])
        end = min(have[source][1], want[target][1])
        if begin < end:
            found[source, target] = begin, end
        if have[source][1] < want[target][1]:
            source += 1
        else:
            target += 1
    return found
