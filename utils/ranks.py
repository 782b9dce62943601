"""What the ranks measured in an epoch, gathered: traffic, phases and residuals of each worker."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dgc import Composition
from utils.build import Parts

OF_EACH_RANK = (
    *('bytes/sent', 'bytes/received', 'norm/residual'),
    *('seconds/compute', 'seconds/compress', 'seconds/communicate', 'seconds/wait'),
)  # numbers of an epoch that differ between ranks


def residual_norm(parts: Parts) -> dict[str, float]:
    """The L2 norm of what this rank has not sent yet, over all buckets, as 'norm/residual'.

    It is that of the memory's residual, or of its velocity where it corrects the momentum. Empty
    where the memory keeps neither.
    """
    composition = parts.optimizer.composition
    assert isinstance(composition, Composition)  # a parameter server's workers log elsewhere
    name = composition.memory.unsent
    held = [bucket.buffers[name] for bucket in parts.optimizer.buckets if name in bucket.buffers]
    if not held:
        return {}
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32).double() for each in held]
    return {'norm/residual': float(torch.linalg.vector_norm(torch.stack(norms)))}


def of_each_rank(parts: Parts, numbers: Mapping[str, float]) -> dict[str, list[float]]:
    """The numbers of an epoch that differ between ranks: a list by rank for each. A collective.

    Args:
        parts: What this rank trains with.
        numbers: The measurements of this rank, of which all ranks have the same names.
    """
    names = [name for name in OF_EACH_RANK if name in numbers]
    own = [float(numbers[name]) for name in names]
    sent = torch.tensor(own, dtype=torch.float64, device=parts.device)
    gathered = parts.engine.all_gather(sent).reshape(parts.engine.size, len(names)).T.tolist()
    return dict(zip(names, gathered, strict=True))
