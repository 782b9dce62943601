"""Bytes that a bucket sends, which decide whether it is compressed."""

from __future__ import annotations

from dataclasses import dataclass

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.compressors import Compressor, keep
from dgc.exchanges import Exchange
from dgc.exchanges.base import ring_bytes


@dataclass(frozen=True)
class Volume:
    """What decides the size of messages, in closed form.

    Attributes:
        exchange, codec, compressor: Parts of the composition.
        always_sparse: Whether a bucket is compressed also where that sends more bytes.
    """

    exchange: Exchange
    codec: Codec
    compressor: Compressor
    always_sparse: bool = False

    def budget(self, spec: BucketSpec, density: float) -> int:
        """Return the largest number of elements of a bucket that a rank sends.

        An exchange that selects gets all elements from the compressor, and sends a fraction.
        """
        if self.exchange.selects:
            return keep(spec.numel, density)
        return self.compressor.budget(spec, density)

    def compresses(self, spec: BucketSpec, density: float | None, world_size: int) -> bool:
        """Return whether a bucket is compressed: only where that sends fewer bytes, unless
        ``always_sparse``.

        A single rank sends nothing: it decides as for two, so that it trains as in a larger job.

        Args:
            spec: The bucket.
            density: Of the step; None for uncompressed.
            world_size: The number of ranks.
        """
        if density is None or self.always_sparse:
            return density is not None
        k, world_size = self.budget(spec, density), max(world_size, 2)
        return self.exchange.is_smaller_than_dense(spec, k, self.codec, world_size)

    def bytes_sent(self, spec: BucketSpec, density: float | None, world_size: int) -> float:
        """Return the bytes that a rank sends for a bucket in one step."""
        if density is None or not self.compresses(spec, density, world_size):
            return ring_bytes(spec.numel, world_size)
        k = self.budget(spec, density)
        return self.exchange.bytes_sent(spec, k, self.codec, world_size)
