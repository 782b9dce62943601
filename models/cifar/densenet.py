"""DenseNet for CIFAR: Huang et al., CVPR 2017, section 3."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.initialise import kaiming

__all__ = ['DenseNet', 'densenet100']

BOTTLENECK = 4  # channels of a bottleneck, in growths
COMPRESSION = 0.5  # channels that a transition of DenseNet-BC keeps


class Layer(nn.Module):
    """The input and `growth` new channels: BatchNorm, ReLU, 3x3; after a 1x1 in a bottleneck."""

    def __init__(self, in_channels: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        inner = BOTTLENECK * growth if bottleneck else in_channels
        self.narrow = nn.Sequential()
        if bottleneck:
            self.narrow = nn.Sequential(
                nn.BatchNorm2d(in_channels), nn.ReLU(), nn.Conv2d(in_channels, inner, 1, bias=False)
            )
        self.bn = nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.conv(F.relu(self.bn(self.narrow(x))))), dim=1)


class DenseNet(nn.Module):
    """3 dense blocks, with 1x1 convolution and average pooling between: [B, 3, H, W] -> logits.

    Args:
        depth: 3n + 4, of which n layers lie in a block; 6n + 4 with bottlenecks.
        growth: k, channels that each layer adds.
        bc: Whether layers have bottlenecks and transitions keep half of the channels (DenseNet-BC).
        num_classes: Number of logits.
    """

    def __init__(
        self, depth: int = 100, growth: int = 12, bc: bool = False, num_classes: int = 10
    ) -> None:
        super().__init__()
        count, rest = divmod(depth - 4, 6 if bc else 3)
        if count < 1 or rest:
            raise ValueError(f'depth must be {"6n" if bc else "3n"} + 4 with n >= 1, not {depth}')
        channels = 2 * growth if bc else 16
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        for block in range(3):
            for _ in range(count):
                layers.append(Layer(channels, growth, bc))
                channels += growth
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            if block < 2:
                kept = int(COMPRESSION * channels) if bc else channels
                layers += [nn.Conv2d(channels, kept, 1, bias=False), nn.AvgPool2d(2)]
                channels = kept
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)  # [B, C, H/4, W/4]
        return self.classifier(torch.mean(x, dim=(2, 3)))


def densenet100(num_classes: int = 10, bc: bool = False) -> DenseNet:
    """k = 12: 7.0 M parameters, or 0.8 M as DenseNet-BC."""
    return DenseNet(100, 12, bc, num_classes)
