"""The sparse sum of Deep Gradient Compression: everybody gets everybody's message."""

from __future__ import annotations

import torch

from dgc.buckets import Bucket
from dgc.codec import Codec, CodecError
from dgc.compressors.base import keep
from dgc.engines.base import Engine
from dgc.exchanges.base import Exchange, Exchanged
from dgc.sparse import Sparse, difference


class AllGather(Exchange):
    """One all-gather of values and indices in one buffer, then the sum in order of rank.

    Messages are padded to the codec's capacity, so their lengths need not be asked for first.
    """

    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """All ``P`` messages; left out is what the codec rounded off our own."""
        encoded = codec.encode(sparse)
        capacity = codec.capacity(bucket.numel, keep(bucket.numel, bucket.ratio))
        message = torch.zeros(capacity, dtype=torch.uint8, device=encoded.device)
        message[: len(encoded)] = encoded
        parts = [codec.decode(received) for received in engine.all_gather(message)]
        for rank, part in enumerate(parts):
            if part.numel != bucket.numel:
                raise CodecError(
                    f'rank {rank} sent {part.numel} elements as its part of {bucket.name}, '
                    f'which has {bucket.numel}'
                )
        return Exchanged(parts, difference(sparse, parts[engine.rank]))

    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """``(P-1)·capacity``: each message passes every other worker once."""
        return (workers - 1) * codec.capacity(numel, k)
