"""Whole chunks, the same on all ranks, summed without indices (Sun et al., arXiv 1902.06855)."""

from __future__ import annotations

import torch

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
from dgc.sparse import Payload, Sparse, cut, gather, indices_of


class ChunkAllReduce(Exchange):
    """All ranks send the same chunks of ``c`` neighbours: those whose L1 norms, summed over the
    ranks, are the largest. So an all-reduce adds them, and no index is sent.

    Two all-reduces: of the ``n/c`` norms, and of about ``k`` elements, in float32; no codec is
    involved, and there is no error.

    Args:
        chunk: ``c``. Small chunks select better, and cost more norms; ``n/c`` should be about
            ``k``.

    Raises:
        ValueError: For a chunk below 1 element.
    """

    accepts = DENSE_ONLY
    selects = True

    def writes(self, payload: Payload) -> Payload | None:
        """Return None: no codec is involved."""
        return None

    def __init__(self, chunk: int = 64) -> None:
        if chunk < 1:
            raise ValueError(f'chunk must be at least 1 element, got {chunk}')
        self.chunk = chunk

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return the sum of the same ``⌈k/c⌉`` chunks of all ranks; the last may be shorter."""
        engine, numel = context.engine, selected.numel
        norms = engine.all_reduce(chunk_norms(selected, self.chunk))
        numbers = torch.arange(len(norms), device=norms.device)
        count = -(-context.k // self.chunk)
        # Not torch.topk, which does not say which of equal chunks it takes: all ranks must agree.
        chosen, _ = cut(Sparse(norms, numbers, len(norms)), count)
        places = torch.arange(self.chunk, device=norms.device)
        indices = (indices_of(chosen)[:, None] * self.chunk + places).view(-1)
        indices = indices[indices < numel]
        sent = gather(selected.values, indices)
        total = engine.all_reduce(sent.values.clone())
        contributions = [sent._replace(values=total)]
        return Exchanged(contributions, None, sent, non_finite=starts_with_nan(contributions))

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return the bytes of all-reduces of the norms and of ``⌈k/c⌉`` complete chunks."""
        chunks = -(-spec.numel // self.chunk)
        elements = min(-(-k // self.chunk) * self.chunk, spec.numel)
        return ring_bytes(chunks, world_size) + ring_bytes(elements, world_size)


def chunk_norms(sparse: Sparse, chunk: int) -> torch.Tensor:
    """Return the L1 norm of each chunk of a dense message, float32 ``[⌈n/c⌉]``."""
    complete = sparse.numel - sparse.numel % chunk
    magnitudes = sparse.values.abs()
    norms = magnitudes[:complete].view(-1, chunk).sum(1)
    if complete == sparse.numel:
        return norms
    return torch.cat([norms, magnitudes[complete:].sum().view(1)])
