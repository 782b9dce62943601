"""ResNeXt for CIFAR: Xie et al., "Aggregated Residual Transformations", CVPR 2017, section 5.2."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.initialise import kaiming

__all__ = ['ResNeXt', 'resnext29']


class Bottleneck(nn.Module):
    """1x1, grouped 3x3 and 1x1 convolution beside a shortcut: [B, C, H, W] -> [B, C', H/s, W/s]."""

    def __init__(
        self, in_channels: int, width: int, channels: int, stride: int, groups: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride > 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class ResNeXt(nn.Module):
    """9n + 2 layers: 3 stages of n blocks with 256, 512 and 1024 channels; [B, 3, H, W] -> logits.

    Args:
        depth: 9n + 2.
        cardinality: Groups of the 3x3 convolutions.
        width: Channels of a group in the first stage; twice as many in each stage that follows.
        num_classes: Number of logits.
    """

    def __init__(
        self, depth: int = 29, cardinality: int = 8, width: int = 64, num_classes: int = 10
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 9)
        if blocks < 1 or rest:
            raise ValueError(f'depth must be 9n + 2 with n >= 1, not {depth}')
        self.conv = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(64)
        layers, in_channels = [], 64
        for stage in range(3):
            channels = 256 * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                inner = cardinality * width * 2**stage
                layers.append(Bottleneck(in_channels, inner, channels, stride, cardinality))
                in_channels = channels
        self.blocks = nn.Sequential(*layers)
        self.classifier = nn.Linear(1024, num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))  # [B, 1024, H/4, W/4]
        return self.classifier(torch.mean(x, dim=(2, 3)))


def resnext29(num_classes: int = 10, cardinality: int = 8, width: int = 64) -> ResNeXt:
    """34.4 M parameters with 8 groups of 64 channels, 68.2 M with 16."""
    return ResNeXt(29, cardinality, width, num_classes)
