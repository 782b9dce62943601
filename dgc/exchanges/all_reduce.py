"""The dense sum."""

from __future__ import annotations

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.engines.base import Engine
from dgc.exchanges.base import Exchange, Exchanged, ring_bytes
from dgc.sparse import Sparse


class AllReduce(Exchange):
    """Sums dense messages in float32, whatever the gradient's type. No codec is involved."""

    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """The engine's all-reduce, in the bucket's ``total``."""
        if not sparse.is_dense:
            raise ValueError('all-reduce sums dense messages; a sparse one needs another exchange')
        total = engine.all_reduce(bucket.hold(sparse.values))
        return Exchanged([sparse._replace(values=total)], None)

    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """A ring's reduce-scatter and all-gather."""
        return ring_bytes(numel, workers)
