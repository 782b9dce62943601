"""The sparse sum of Deep Gradient Compression: everybody gets everybody's message."""

from __future__ import annotations

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors.base import keep
from dgc.engines.base import Engine
from dgc.exchanges.base import Exchange, Exchanged
from dgc.exchanges.wire import Wire
from dgc.sparse import Sparse, difference


class AllGather(Exchange):
    """One all-gather of values and indices in one buffer, then the sum in order of rank."""

    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """All ``P`` messages; left out is what the codec rounded off our own."""
        wire = Wire(bucket, keep(bucket.numel, bucket.ratio), codec)
        gathered = engine.all_gather(wire.encode(sparse))
        parts = [wire.read(part, rank) for rank, part in enumerate(gathered)]
        return Exchanged(parts, difference(sparse, parts[engine.rank]))

    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """``(P-1)·capacity``: each message passes every other worker once."""
        return (workers - 1) * codec.capacity(numel, k)
