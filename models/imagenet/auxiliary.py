"""The loss of a network with auxiliary classifiers: Szegedy et al., CVPR 2015, section 5."""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ['AuxiliaryCrossEntropy']


class AuxiliaryCrossEntropy(nn.CrossEntropyLoss):
    """Cross entropy of the logits, and a part of that of each auxiliary classifier's logits.

    In training, torchvision's GoogLeNet and Inception v3 return a tuple of the logits and those of
    the auxiliary classifiers. In evaluation they return the logits alone, whose cross entropy it is
    then.

    Args:
        auxiliary_weight: By which the cross entropy of each auxiliary classifier is multiplied.
        label_smoothing: Of all classifiers.
    """

    def __init__(self, auxiliary_weight: float = 0.3, label_smoothing: float = 0.0) -> None:
        super().__init__(label_smoothing=label_smoothing)
        self.auxiliary_weight = auxiliary_weight

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        """The loss, a scalar, from logits [B, classes] or a tuple of them, and classes [B]."""
        if isinstance(outputs, Tensor):
            return super().forward(outputs, targets)
        logits, *auxiliary = (each for each in outputs if each is not None)
        losses = [super(AuxiliaryCrossEntropy, self).forward(each, targets) for each in auxiliary]
        total = super().forward(logits, targets)
        return total + self.auxiliary_weight * torch.stack(losses).sum() if losses else total
