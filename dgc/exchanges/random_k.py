"""Random-k: the same random positions on all ranks, so that an all-reduce needs no indices."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

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
from dgc.sparse import Payload, Sparse, gather
from dgc.state import Entries, Resize, Values


class RandomK(Exchange):
    """An all-reduce of ``k`` elements at positions that all ranks draw from the same seed.

    Args:
        seed: Of the positions, the same on all ranks (compared before training).
        unbiased: Multiply the result by ``n/k``, so that its expectation is the mean gradient: for
            compositions without error feedback (Wangni et al., arXiv 1710.09854). With error
            feedback the elements must stay as they are (Stich et al., arXiv 1809.07599).
    """

    accepts = DENSE_ONLY
    selects = True

    def __init__(self, seed: int = 0, unbiased: bool = False) -> None:
        self.seed = seed
        self.unbiased = unbiased

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare the number of draws so far, the same on all ranks."""
        return {'draws': Values(Resize.REPLICATED)}

    def writes(self, payload: Payload) -> Payload | None:
        """Return None: values are summed in float32, without a codec."""
        return None

    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Return the sum of all ranks' elements at the positions of this step."""
        sent = gather(selected.values, self._positions(selected, context))
        values = sent.values.clone()
        if not context.is_finite:
            values[0] = torch.nan  # element 0, where the NaN is, may not be among the positions
        total = context.engine.all_reduce(values)
        non_finite = starts_with_nan([sent._replace(values=total)])
        if self.unbiased:
            total.mul_(selected.numel / len(total))
        return Exchanged([sent._replace(values=total)], None, sent, non_finite=non_finite)

    def _positions(self, selected: Sparse, context: Context) -> Tensor:
        """Draw ``k`` of ``n`` positions, ascending; on the CPU, whose numbers are the same on every
        device."""
        draws = context.state['draws']
        draws['count'] = count = draws.get('count', 0) + 1
        bucket = zlib.crc32(context.bucket.spec.names[0].encode())  # others draw others
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + count) ^ bucket)
        drawn = torch.randperm(selected.numel, generator=generator)[: context.k]
        return drawn.sort().values.to(selected.values.device)

    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return the bytes of a ring all-reduce of ``k`` float32 values."""
        return ring_bytes(k, world_size)
