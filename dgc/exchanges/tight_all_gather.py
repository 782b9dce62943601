"""An all-gather of messages whose number of elements is not known before."""

from __future__ import annotations

import torch

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.exchanges.all_gather import AllGather
from dgc.exchanges.base import SPARSE_ONLY, Context, Exchanged, starts_with_nan
from dgc.sparse import Sparse, difference

LENGTH = 8  # bytes of a length, an int64


class TightAllGather(AllGather):
    """An ``AllGather`` whose messages have the length of the longest one of the step.

    The ranks gather the lengths first: 8 bytes and the latency of one more collective. It pays
    where a compressor sends far less than its budget, such as ``FixedThreshold``.
    """

    accepts = SPARSE_ONLY

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return all ``P`` messages; the error is this rank's quantization error."""
        wire, engine = context.wire(), context.engine
        message = wire.encode(selected)
        length = context.codec.capacity(selected.numel, len(selected.values))
        lengths = engine.all_gather(torch.tensor([length], device=message.device))
        longest = max(int(each) for each in lengths)
        gathered = engine.all_gather(message[:longest].contiguous())
        parts = wire.read_all(gathered)
        error = difference(selected, parts[engine.rank])
        return Exchanged(parts, error, scale=self.scale, non_finite=starts_with_nan(parts))

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return ``(P-1)·(8 + capacity)``, which is the most that it sends."""
        return (world_size - 1) * (LENGTH + codec.capacity(spec.numel, k))
