"""VGG for CIFAR: configurations A, D and E of Simonyan and Zisserman, ICLR 2015, with BatchNorm.

On 32x32 images the five poolings leave one pixel, so a single linear layer takes the place of the
three that the ImageNet networks end with.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from models.initialise import kaiming

__all__ = ['VGG', 'vgg11', 'vgg16', 'vgg19']

CHANNELS = (64, 128, 256, 512, 512)
CONVOLUTIONS = {
    11: (1, 1, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}  # depth -> how many in each stage


def _features(depth: int) -> Iterator[nn.Module]:
    in_channels = 3
    for channels, convolutions in zip(CHANNELS, CONVOLUTIONS[depth], strict=True):
        for _ in range(convolutions):
            # BatchNorm's shift makes a bias of the convolution's own redundant.
            yield nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
            yield nn.BatchNorm2d(channels)
            yield nn.ReLU(inplace=True)
            in_channels = channels
        yield nn.MaxPool2d(2)


class VGG(nn.Module):
    """depth - 3 convolutions and one linear layer: [B, 3, 32, 32] -> logits [B, num_classes]."""

    def __init__(self, depth: int, num_classes: int = 10) -> None:
        super().__init__()
        if depth not in CONVOLUTIONS:
            raise ValueError(f'depth must be one of {sorted(CONVOLUTIONS)}, not {depth}')
        self.features = nn.Sequential(*_features(depth))
        self.classifier = nn.Linear(CHANNELS[-1], num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)  # [B, 512, H/32, W/32]
        return self.classifier(torch.mean(x, dim=(2, 3)))


def vgg11(num_classes: int = 10) -> VGG:
    """9.2 M parameters."""
    return VGG(11, num_classes)


def vgg16(num_classes: int = 10) -> VGG:
    """14.7 M parameters."""
    return VGG(16, num_classes)


def vgg19(num_classes: int = 10) -> VGG:
    """20.0 M parameters."""
    return VGG(19, num_classes)
