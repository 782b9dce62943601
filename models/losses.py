"""Loss functions of sequences."""

from torch import Tensor, nn

__all__ = ['TokenLoss']


class TokenLoss(nn.CrossEntropyLoss):
    """The mean cross-entropy over all positions: logits [..., classes], classes [...] -> scalar.

    Positions whose class is ``ignore_index``, -100, do not count. The arguments are those of
    torch's CrossEntropyLoss.
    """

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flatten all positions; the logits of half precision are widened."""
        return super().forward(outputs.flatten(0, -2).float(), targets.flatten())
