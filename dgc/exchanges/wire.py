"""Messages of one bucket, as an exchange sends them."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.codec import Codec, CodecError
from dgc.sparse import Sparse, difference, empty_message


class Wire:
    """Writes and reads messages of at most ``k`` of a bucket's elements.

    All have the length of the longest possible, so that ranks need not exchange lengths first.

    Attributes:
        k: At most the number of the bucket's elements.
        capacity: Bytes of a message.
    """

    def __init__(self, bucket: Bucket, k: int, codec: Codec) -> None:
        self._bucket = bucket
        self._codec = codec
        self.k = min(k, bucket.numel)
        self.capacity = codec.capacity(bucket.numel, self.k)

    def write(self, sparse: Sparse) -> tuple[Tensor, Sparse]:
        """Return the message, uint8 ``[capacity]``, and its quantization error."""
        if not len(sparse.values):  # the usual case for some rounds among many ranks
            return self._empty.clone(), sparse
        message = self.encode(sparse)
        return message, difference(sparse, self._codec.decode(message))

    def encode(self, sparse: Sparse) -> Tensor:
        """Return the message, uint8 ``[capacity]``, for ranks that decode their own anyway."""
        encoded = self._codec.encode(sparse, self._bucket.next_seed())
        if len(encoded) == self.capacity:
            return encoded
        message = self.blank()
        message[: len(encoded)] = encoded
        return message

    @cached_property
    def _empty(self) -> Tensor:
        """The message without an element."""
        return self.encode(empty_message(self._bucket.numel, self._bucket.device))

    def read(self, message: Tensor | None, rank: int) -> Sparse:
        """Decode the message that came from ``rank``.

        Raises:
            CodecError: Where it is damaged, or not of this bucket.
        """
        assert message is not None
        return self._checked(self._codec.decode(message), rank)

    def read_all(self, messages: Tensor) -> list[Sparse]:
        """Decode the messages of all ranks, uint8 ``[P, capacity]``; see :meth:`read`."""
        parts = self._codec.decode_all([*messages])
        return [self._checked(part, rank) for rank, part in enumerate(parts)]

    def _checked(self, sparse: Sparse, rank: int) -> Sparse:
        if sparse.numel != self._bucket.numel:
            raise CodecError(
                f'rank {rank} sent {sparse.numel} elements for {self._bucket.name}, '
                f'which has {self._bucket.numel}'
            )
        return sparse

    def blank(self) -> Tensor:
        """Return zeros, uint8 ``[capacity]``: a buffer of the length of a message."""
        return torch.zeros(self.capacity, dtype=torch.uint8, device=self._bucket.device)
