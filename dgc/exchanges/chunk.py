"""Whole chunks, chosen together and summed densely (Sun et al., arXiv 1902.06855)."""

from __future__ import annotations

import torch

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors.base import keep
from dgc.engines.base import Engine
from dgc.exchanges.base import Exchange, Exchanged, ring_bytes
from dgc.sparse import Sparse, cut, gather, indices_of


class ChunkAllReduce(Exchange):
    """All workers send the same chunks of ``c`` neighbours: those of the largest L1 norms, summed
    over the workers. So nothing need be gathered, and no index travels.

    Two all-reduces: of the ``n/c`` norms, and of about ``k`` elements, in float32; no codec is
    involved. Nothing is left out of what is sent.

    chunk: ``c``. Small ones choose better, and cost norms: ``n/c`` is to be about ``k``.
    """

    selects = True

    def __init__(self, chunk: int = 64) -> None:
        if chunk < 1:
            raise ValueError(f'chunk must be at least 1 element, got {chunk}')
        self.chunk = chunk

    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """The sum of the ``⌈k/c⌉`` chunks that all have chosen; the last may be shorter."""
        norms = engine.all_reduce(chunk_norms(sparse, self.chunk))
        numbers = torch.arange(len(norms), device=norms.device)
        count = -(-keep(bucket.numel, bucket.ratio) // self.chunk)
        # Not torch.topk, which leaves open which of equal chunks: all must choose the same.
        chosen, _ = cut(Sparse(norms, numbers, len(norms)), count)
        places = torch.arange(self.chunk, device=norms.device)
        indices = (indices_of(chosen)[:, None] * self.chunk + places).view(-1)
        indices = indices[indices < bucket.numel]
        sent = gather(sparse.values, indices)
        total = engine.all_reduce(sent.values.clone())
        return Exchanged([sent._replace(values=total)], None, sent)

    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """All-reduces of the norms and of whole chunks; the last one may be shorter."""
        chunks = -(-numel // self.chunk)
        elements = min(-(-k // self.chunk) * self.chunk, numel)
        return ring_bytes(chunks, workers) + ring_bytes(elements, workers)


def chunk_norms(sparse: Sparse, chunk: int) -> torch.Tensor:
    """The L1 norm of each chunk of a dense message, float32 ``[⌈n/c⌉]``."""
    whole = sparse.numel - sparse.numel % chunk
    magnitudes = sparse.values.abs()
    norms = magnitudes[:whole].view(-1, chunk).sum(1)
    if whole == sparse.numel:
        return norms
    return torch.cat([norms, magnitudes[whole:].sum().view(1)])
