"""gTop-k S-SGD: the largest of the sum, by sums of two (Shi et al., ICDCS 2019, arXiv 1901.04359).

Adding two sparse messages and keeping the ``k`` largest of what comes out gives a message of the
same size, so ⌈log2 P⌉ of these sums end with ``k`` elements for all ``P`` ranks, whatever ``P`` is.
What is cut on the way returns to the memories (truncation.py).
"""

from __future__ import annotations

import math

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.engines.base import Engine
from dgc.engines.group import doublings
from dgc.exchanges.base import Context, Exchange, Exchanged
from dgc.exchanges.truncation import Truncation
from dgc.exchanges.wire import Wire
from dgc.sparse import Sparse, cut, difference, merge


class GTopK(Exchange):
    """Up a binomial tree of sums, then a broadcast (Algorithms 2 and 3)."""

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return at most ``k`` elements of the sum over the ranks."""
        wire, engine = context.wire(), context.engine
        truncation = Truncation(selected)
        partial = selected
        # Reduce: in the round of a gap, odd multiples of it send to the next lower even multiple.
        for gap in doublings(engine.size):
            if engine.rank % (2 * gap) == gap:
                message, rounding = wire.write(partial)
                truncation.add(rounding)
                engine.send_recv(message, engine.rank - gap, None)
            elif engine.rank % (2 * gap) == 0 and engine.rank + gap < engine.size:
                child = engine.rank + gap
                received = wire.read(engine.send_recv(wire.blank(), None, child), child)
                partial, rest = cut(merge([partial, received]), wire.k)
                truncation.add(rest)
            else:
                engine.send_recv(wire.blank(), None, None)
        message = wire.blank()
        if engine.rank == 0:
            message, rounding = wire.write(partial)
            truncation.add(rounding)
        result = wire.read(engine.broadcast(message, root=0), 0)
        return truncation.exchanged([result], result)

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return ``⌈log2 P⌉·capacity``: the root receives as many, and sends as many again."""
        return math.ceil(math.log2(world_size)) * codec.capacity(spec.numel, k)


class GTopKDoubling(Exchange):
    """By recursive doubling: in round r, pairs at a distance of 2^r add their messages, both alike,
    so that all have the result at once.

    Where ``P`` is not a power of two, the surplus ranks first send their messages to others, and
    receive the result from them. After round r, 2^r ranks hold the same sum and cut it alike, so
    only the lowest of them keeps the truncation error.
    """

    recodes = True

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return at most ``k`` elements of the sum over the ranks."""
        wire, engine = context.wire(), context.engine
        truncation = Truncation(selected)
        rank, core = engine.rank, power_of_two(engine.size)
        surplus = engine.size - core
        partial = self._fold(selected, wire, truncation, engine)
        for gap in doublings(core):
            if rank >= core:
                engine.send_recv(wire.blank(), None, None)
                continue
            message = wire.encode(partial)
            received = engine.send_recv(message, rank ^ gap, rank ^ gap)
            pair = [wire.read(message, rank), wire.read(received, rank ^ gap)]
            if rank % gap == 0:
                truncation.add(difference(partial, pair[0]))
            partial, rest = cut(merge(pair), wire.k)  # a sum of two is the same in either order
            if rank % (2 * gap) == 0:
                truncation.add(rest)
        message, rounding = wire.write(partial)
        if rank == 0:
            truncation.add(rounding)
        if surplus:
            # The surplus ranks receive the result from those that took their messages.
            destination = rank + core if rank < surplus else None
            source = rank - core if rank >= core else None
            received = engine.send_recv(message, destination, source)
            message = message if received is None else received
        result = wire.read(message, rank % core)
        return truncation.exchanged([result], result)

    def _fold(self, sparse: Sparse, wire: Wire, truncation: Truncation, engine: Engine) -> Sparse:
        """Add the surplus ranks' messages to those of as many others."""
        rank, core = engine.rank, power_of_two(engine.size)
        if core == engine.size:
            return sparse
        message, rounding = wire.write(sparse)
        other = rank + core if rank < engine.size - core else None
        received = engine.send_recv(message, rank - core if rank >= core else None, other)
        if rank >= core:
            truncation.add(rounding)
        if received is None or other is None:
            return sparse
        folded, rest = cut(merge([sparse, wire.read(received, other)]), wire.k)
        truncation.add(rest)
        return folded

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return ``⌈log2 P⌉·capacity``, which includes the result sent to a surplus rank."""
        return math.ceil(math.log2(world_size)) * codec.capacity(spec.numel, k)


def power_of_two(limit: int) -> int:
    """Return the largest power of two that is at most ``limit``."""
    return 1 << (limit.bit_length() - 1)
