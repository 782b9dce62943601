"""Messages of one bucket, as an exchange passes them on."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.codec import Codec, CodecError
from dgc.sparse import Sparse, difference, empty_message


class Wire:
    """Messages of at most ``k`` of a bucket's elements, padded to one length, so that none has to
    be asked for first."""

    def __init__(self, bucket: Bucket, k: int, codec: Codec) -> None:
        self._bucket = bucket
        self._codec = codec
        self.k = min(k, bucket.numel)
        self.capacity = codec.capacity(bucket.numel, self.k)

    def write(self, sparse: Sparse) -> tuple[Tensor, Sparse]:
        """uint8 ``[capacity]``, and what the codec rounded off."""
        if not len(sparse.values):  # among many workers, most
            return self._nothing.clone(), sparse
        message = self.encode(sparse)
        return message, difference(sparse, self._codec.decode(message))

    def encode(self, sparse: Sparse) -> Tensor:
        """uint8 ``[capacity]``, for those who will read their own message back anyway."""
        encoded = self._codec.encode(sparse)
        message = self.blank()
        message[: len(encoded)] = encoded
        return message

    @cached_property
    def _nothing(self) -> Tensor:
        """The message without an element."""
        return self.encode(empty_message(self._bucket.numel, self._bucket.device))

    def read(self, message: Tensor | None, rank: int) -> Sparse:
        """The message that came from worker ``rank``.

        Raises CodecError where it is damaged, or not of this bucket.
        """
        assert message is not None
        sparse = self._codec.decode(message)
        if sparse.numel != self._bucket.numel:
            raise CodecError(
                f'rank {rank} sent {sparse.numel} elements as its part of {self._bucket.name}, '
                f'which has {self._bucket.numel}'
            )
        return sparse

    def blank(self) -> Tensor:
        """uint8 ``[capacity]``: the length of what is to come."""
        return torch.zeros(self.capacity, dtype=torch.uint8, device=self._bucket.device)
