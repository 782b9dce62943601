"""What is measured on a split of the data, as sums that are added up over the ranks."""

from __future__ import annotations

import torch
from torch import Tensor


class TopK:
    """Top-k accuracy: percentage of samples whose class is among those with the k highest scores.

    Args:
        k: Number of classes that count as a hit.
    """

    def __init__(self, k: int = 1) -> None:
        self.k = k
        self.correct = 0
        self.count = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count a batch: scores ``[B, classes]`` and classes ``[B]``."""
        best = outputs.topk(min(self.k, outputs.shape[1]), dim=1).indices
        self.correct += int((best == targets[:, None]).sum())
        self.count += len(targets)

    def sums(self) -> Tensor:
        """float64 ``[2]``: hits and samples of this rank, to be added up over the ranks."""
        return torch.tensor([self.correct, self.count], dtype=torch.float64)

    @staticmethod
    def value(sums: Tensor) -> float:
        """Percent, from the sums of all ranks."""
        return 100 * float(sums[0]) / max(float(sums[1]), 1)
