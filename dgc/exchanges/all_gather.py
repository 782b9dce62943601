"""The sum of Deep Gradient Compression: every rank receives every rank's message."""

from __future__ import annotations

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.exchanges.base import EITHER, Context, Exchange, Exchanged, Scale, starts_with_nan
from dgc.sparse import Sparse, difference


class AllGather(Exchange):
    """One all-gather of messages, then the sum in order of rank.

    Takes sparse messages, or dense ones whose value coding makes them short (QSGD, EF-signSGD).

    Args:
        scale: WORLD_SIZE for the mean over the ranks; CONTRIBUTORS to average each element over
            the ranks that sent it (DeMo).
    """

    accepts = EITHER
    keeps_selection = True

    def __init__(self, scale: Scale = Scale.WORLD_SIZE) -> None:
        self.scale = scale

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return all ``P`` messages; the error is this rank's quantization error."""
        wire, engine = context.wire(), context.engine
        gathered = engine.all_gather(wire.encode(selected))
        parts = wire.read_all(gathered)
        error = difference(selected, parts[engine.rank])
        # Every rank contributes every element of dense messages.
        scale = Scale.WORLD_SIZE if selected.is_dense else self.scale
        return Exchanged(parts, error, scale=scale, non_finite=starts_with_nan(parts))

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return ``(P-1)·capacity``: each message passes every other rank once."""
        return (world_size - 1) * codec.capacity(spec.numel, k)
