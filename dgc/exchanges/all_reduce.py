"""The uncompressed sum."""

from __future__ import annotations

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.exchanges.base import (
    DENSE_ONLY,
    Context,
    Exchange,
    Exchanged,
    ring_bytes,
    starts_with_nan,
)
from dgc.sparse import Payload, Sparse


class AllReduce(Exchange):
    """Sums dense messages in float32, whatever the gradient's type. No codec is involved."""

    accepts = DENSE_ONLY

    def writes(self, payload: Payload) -> Payload | None:
        """Return None: no codec is involved."""
        return None

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """All-reduce in the bucket's ``total``; a flag is one more number behind it."""
        if not selected.is_dense:
            raise ValueError('all-reduce sums dense messages; a sparse one needs another exchange')
        bucket, engine = context.bucket, context.engine
        total = bucket.copy_to_total(selected.values)
        contributions, flag = [selected._replace(values=total)], None
        if context.flag is None:
            engine.all_reduce(total)
        else:
            both = bucket.total_and_flag
            both[-1] = float(context.flag)
            flag = bool(engine.all_reduce(both)[-1] > 0)
        return Exchanged(contributions, non_finite=starts_with_nan(contributions), flag=flag)

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return the bytes of a ring's reduce-scatter and all-gather."""
        return ring_bytes(spec.numel, world_size)
