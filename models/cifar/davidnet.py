"""DavidNet: the residual network with 9 layers of David Page's "How to Train Your ResNet", 2018."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ['DavidNet', 'davidnet']


class ConvBN(nn.Sequential):
    """3x3 convolution, BatchNorm, ReLU: [B, C, H, W] -> [B, C', H, W]."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )


class Residual(nn.Module):
    """Two ConvBN beside an identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(ConvBN(channels, channels), ConvBN(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class DavidNet(nn.Module):
    """8 convolutions and one linear layer: [B, 3, 32, 32] -> logits [B, num_classes].

    Args:
        channels: Of the first convolution.
        scale: By which the logits are multiplied.
        num_classes: Number of logits.
    """

    def __init__(self, channels: int = 64, scale: float = 0.125, num_classes: int = 10) -> None:
        super().__init__()
        c, pool = channels, nn.MaxPool2d(2)
        self.features = nn.Sequential(
            ConvBN(3, c),
            *(ConvBN(c, 2 * c), pool, Residual(2 * c)),
            *(ConvBN(2 * c, 4 * c), pool),
            *(ConvBN(4 * c, 8 * c), pool, Residual(8 * c)),
        )
        self.classifier = nn.Linear(8 * c, num_classes, bias=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_max_pool2d(self.features(x), 1)  # [B, 8c, 1, 1]
        return self.scale * self.classifier(torch.flatten(x, 1))


def davidnet(num_classes: int = 10) -> DavidNet:
    """6.6 M parameters."""
    return DavidNet(num_classes=num_classes)
