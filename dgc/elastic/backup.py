"""A copy of each worker's residuals at the next worker, for when it dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.elastic.resize import sums
from dgc.engines.torchft_engine import TorchftEngine


@dataclass(frozen=True)
class Copy:
    """What another worker has not sent, as it was some steps ago.

    Attributes:
        owner: The id of that worker.
        size: The world size by which it would have been divided.
        flat: All tensors that are summed over the workers, one after another.
    """

    owner: str
    size: int
    flat: Tensor

    def add_to(self, buckets: Sequence[Bucket], size: int) -> None:
        """Add it to this worker's own, of a world of ``size``."""
        tensors = sums(buckets)
        parts = self.flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.add_(part, alpha=size / self.size)


def exchange_copies(buckets: Sequence[Bucket], engine: TorchftEngine) -> Copy | None:
    """Send this worker's residuals to the next rank; return those of the one before. A collective.

    None where there is no other worker, or nothing is kept.

    Raises:
        LostError: Where a worker is gone.
    """
    tensors = sums(buckets)
    if engine.size == 1 or not tensors:
        return None
    own = torch.cat([tensor.reshape(-1) for tensor in tensors])
    before = (engine.rank - 1) % engine.size
    flat = engine.send_recv(own, (engine.rank + 1) % engine.size, before)
    assert flat is not None
    return Copy(engine.members[before], engine.size, flat)
