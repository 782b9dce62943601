"""What is measured on a split of the data, as sums that are added up over the ranks."""

from __future__ import annotations

import torch
from torch import Tensor


class MeterError(ValueError):
    """What a model returns cannot be measured by a meter. The message names what to change."""


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
        """Count a batch: scores ``[B, classes]`` and integer classes ``[B]``.

        Raises:
            MeterError: For tensors that are not these, or no more than k classes, of which the k
                best are always a hit.
        """
        whole = not targets.is_floating_point() and not targets.is_complex()
        if outputs.dim() != 2 or targets.shape != outputs.shape[:1] or not whole:
            raise MeterError(
                f'top-{self.k} accuracy compares scores [batch, classes] with whole numbers '
                f'[batch], and the model returns {list(outputs.shape)} for targets '
                f'{list(targets.shape)} of {targets.dtype}: choose another meter, in a config file'
            )
        if self.k >= outputs.shape[1]:
            raise MeterError(
                f'top-{self.k} accuracy is always 100 % of {outputs.shape[1]} classes: '
                f'set k below {outputs.shape[1]}'
            )
        best = outputs.topk(self.k, dim=1).indices
        self.correct += int((best == targets[:, None]).sum())
        self.count += len(targets)

    def sums(self) -> Tensor:
        """float64 ``[2]``: hits and samples of this rank, to be added up over the ranks."""
        return torch.tensor([self.correct, self.count], dtype=torch.float64)

    @staticmethod
    def value(sums: Tensor) -> float:
        """Percent, from the sums of all ranks."""
        return 100 * float(sums[0]) / max(float(sums[1]), 1)
