"""gTop-k S-SGD: the largest of the sum, by sums of two (Shi et al., ICDCS 2019, arXiv 1901.04359).

Adding two sparse messages and keeping the ``k`` largest of what comes out gives a message of the
same size, so ⌈log2 P⌉ of these sums end with ``k`` elements for all ``P`` workers, whatever ``P``
is. What is cut on the way returns to the memories (ledger.py).
"""

from __future__ import annotations

import math

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors.base import keep
from dgc.engines.base import Engine
from dgc.engines.group import doublings
from dgc.exchanges.base import Exchange, Exchanged
from dgc.exchanges.ledger import Ledger
from dgc.exchanges.wire import Wire
from dgc.sparse import Sparse, cut, difference, merge


class GTopK(Exchange):
    """Up a binomial tree of sums, then a broadcast (Algorithms 2 and 3)."""

    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """At most ``k`` elements of the sum of all."""
        wire = Wire(bucket, keep(bucket.numel, bucket.ratio), codec)
        ledger = Ledger(sparse)
        partial = sparse
        for gap in doublings(engine.size):
            if engine.rank % (2 * gap) == gap:
                message, rounding = wire.write(partial)
                ledger.cut(rounding)
                engine.send_recv(message, engine.rank - gap, None)
            elif engine.rank % (2 * gap) == 0 and engine.rank + gap < engine.size:
                child = engine.rank + gap
                received = wire.read(engine.send_recv(wire.blank(), None, child), child)
                partial, rest = cut(merge([partial, received]), wire.k)
                ledger.cut(rest)
            else:
                engine.send_recv(wire.blank(), None, None)
        message = wire.blank()
        if engine.rank == 0:
            message, rounding = wire.write(partial)
            ledger.cut(rounding)
        result = wire.read(engine.broadcast(message, root=0), 0)
        return ledger.settle([result], result)

    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """``⌈log2 P⌉·capacity``: the root receives as many, and sends as many again."""
        return math.ceil(math.log2(workers)) * codec.capacity(numel, k)


class GTopKDoubling(Exchange):
    """By recursive doubling: in round r, pairs at a distance of 2^r add their messages, both alike,
    so that all have the result at once.

    Where ``P`` is not a power of two, the surplus workers first hand their messages to others, and
    are told the result. Since 2^r workers hold the same sum after round r, and cut it alike, only
    the one of lowest rank takes back what they cut.
    """

    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """At most ``k`` elements of the sum of all."""
        wire = Wire(bucket, keep(bucket.numel, bucket.ratio), codec)
        ledger = Ledger(sparse)
        rank, core = engine.rank, power_of_two(engine.size)
        surplus = engine.size - core
        partial = self._fold(sparse, wire, ledger, engine)
        for gap in doublings(core):
            if rank >= core:
                engine.send_recv(wire.blank(), None, None)
                continue
            message = wire.encode(partial)
            received = engine.send_recv(message, rank ^ gap, rank ^ gap)
            pair = [wire.read(message, rank), wire.read(received, rank ^ gap)]
            if rank % gap == 0:
                ledger.cut(difference(partial, pair[0]))
            partial, rest = cut(merge(pair), wire.k)  # a sum of two is the same in either order
            if rank % (2 * gap) == 0:
                ledger.cut(rest)
        message, rounding = wire.write(partial)
        if rank == 0:
            ledger.cut(rounding)
        if surplus:
            told = rank + core if rank < surplus else None
            teller = rank - core if rank >= core else None
            received = engine.send_recv(message, told, teller)
            message = message if received is None else received
        result = wire.read(message, rank % core)
        return ledger.settle([result], result)

    def _fold(self, sparse: Sparse, wire: Wire, ledger: Ledger, engine: Engine) -> Sparse:
        """The surplus workers' messages, added to those of as many others."""
        rank, core = engine.rank, power_of_two(engine.size)
        if core == engine.size:
            return sparse
        message, rounding = wire.write(sparse)
        other = rank + core if rank < engine.size - core else None
        received = engine.send_recv(message, rank - core if rank >= core else None, other)
        if rank >= core:
            ledger.cut(rounding)
        if received is None or other is None:
            return sparse
        folded, rest = cut(merge([sparse, wire.read(received, other)]), wire.k)
        ledger.cut(rest)
        return folded

    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """``⌈log2 P⌉·capacity``, which counts what a surplus worker is told."""
        return math.ceil(math.log2(workers)) * codec.capacity(numel, k)


def power_of_two(workers: int) -> int:
    """The largest that is not above ``workers``."""
    return 1 << (workers.bit_length() - 1)
