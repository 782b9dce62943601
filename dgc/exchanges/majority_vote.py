"""Majority vote over signs: signSGD (Bernstein et al., arXiv 1810.05291, Algorithm 1)."""

from __future__ import annotations

import torch

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.exchanges.base import DENSE_ONLY, Context, Exchange, Exchanged, Scale, starts_with_nan
from dgc.sparse import Sparse


class MajorityVote(Exchange):
    """``sign(Σ sign(decoded message))``: each rank votes on the direction of every element.

    Ties give 0. A block of zeros votes for nothing; a single zero votes as its coding rounds it.
    The magnitude of the gradient is lost on purpose: the learning rate is the step's size.
    """

    accepts = DENSE_ONLY
    scale = Scale.NONE
    is_estimate = False

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Gather all messages and count the votes."""
        wire = context.wire()
        gathered = context.engine.all_gather(wire.encode(selected))
        votes, non_finite = torch.zeros_like(selected.values), False
        for part in wire.read_all(gathered):
            non_finite |= starts_with_nan([part])  # before the sign: that of a NaN is 0 in torch
            votes += part.values.sign_()
        result = Sparse(votes.sign_(), None, selected.numel)
        return Exchanged([result], scale=self.scale, non_finite=non_finite)

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return ``(P-1)·capacity``: each message passes every other rank once."""
        return (world_size - 1) * codec.capacity(spec.numel, spec.numel)

    def is_smaller_than_dense(
        self, spec: BucketSpec, k: int, codec: Codec, world_size: int
    ) -> bool:
        """Return True: an uncompressed bucket would take a step of another size than a vote."""
        return True
