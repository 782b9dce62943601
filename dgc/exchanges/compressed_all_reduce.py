"""The compressed all-reduce of 1-bit Adam (Tang et al., arXiv 2102.02888, section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.exchanges.base import DENSE_ONLY, Context, Exchange, Exchanged, Scale
from dgc.sparse import Payload, Sparse
from dgc.state import Entries, OwnedSlice, owned_range


class CompressedAllReduce(Exchange):
    """Each rank averages one slice of dense messages, and codes the average again.

        scatter   every rank sends every owner its coded slice; its error returns to that rank
        average   the owner adds its own error of the last step, and codes the sum
        gather    the coded averages go to all ranks; the error stays with the owner

    ``2(P-1)/P`` of a message per rank, where an all-gather sends ``P-1``.
    """

    accepts = DENSE_ONLY
    feeds_back = True
    scale = Scale.NONE

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare the owner's error, in units of the average."""
        return {'owner_error': OwnedSlice()}

    def writes(self, payload: Payload) -> Payload | None:
        """Return DENSE: slices are sent as dense messages."""
        return Payload.DENSE

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return the mean over the ranks, dense; the error is that of this rank's own slices."""
        engine, rank, size = context.engine, context.engine.rank, context.engine.size
        slices = [
            selected.values[slice(*owned_range(selected.numel, r, size))] for r in range(size)
        ]
        capacity = max(context.codec.capacity(len(each), len(each)) for each in slices)

        # Scatter: to each owner its slice, in a rotated order so that no owner is overrun.
        messages = [self._encode(each, capacity, context) for each in slices]
        own = [self._decode(message, context) for message in messages]
        error = Sparse(selected.values - torch.cat(own), None, selected.numel)
        received: dict[int, Tensor] = {}
        for shift in range(1, size):
            ahead, behind = (rank + shift) % size, (rank - shift) % size
            message = engine.send_recv(messages[ahead], ahead, behind)
            assert message is not None
            received[behind] = message

        # Average in order of rank, with the owner's error feedback.
        total = torch.zeros_like(slices[rank])
        for source in range(size):
            total += own[rank] if source == rank else self._decode(received[source], context)
        owner_error: Tensor = context.state['owner_error']
        average = total.div_(size).add_(owner_error)
        # Finite messages may add up to more than float32 holds; a NaN survives the coding.
        average = average.where(average.isfinite(), torch.nan)
        message = self._encode(average, capacity, context)
        ours = self._decode(message, context)
        new_error = average - ours

        # Gather.
        gathered = enumerate(engine.all_gather(message))
        parts = [ours if r == rank else self._decode(each, context) for r, each in gathered]
        result = Sparse(torch.cat(parts), None, selected.numel)
        non_finite = bool(result.values.isnan().any())  # of any owner; alike on all ranks
        if not non_finite:
            owner_error.copy_(new_error)
        return Exchanged([result], error, scale=self.scale, non_finite=non_finite)

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return the bytes of ``2(P-1)`` messages of ``⌈n/P⌉`` elements."""
        longest = -(-spec.numel // world_size)
        return 2 * (world_size - 1) * codec.capacity(longest, longest)

    def _encode(self, values: Tensor, capacity: int, context: Context) -> Tensor:
        """Return a message padded to the length of the longest slice's."""
        dense = Sparse(values.contiguous(), None, len(values))
        message = context.codec.encode(dense, context.bucket.next_seed())
        padded = message.new_zeros(capacity)
        padded[: len(message)] = message
        return padded

    def _decode(self, message: Tensor, context: Context) -> Tensor:
        """Return the values of a message."""
        return context.codec.decode(message).values
