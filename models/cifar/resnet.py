"""Residual networks for CIFAR: He et al., "Deep Residual Learning", CVPR 2016, section 4.2."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.initialise import kaiming

__all__ = ['ResNet', 'resnet20', 'resnet32', 'resnet44', 'resnet56', 'resnet110']


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside an identity (option A): [B, C, H, W] -> [B, C', H/s, W/s]."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.new_channels = channels - in_channels

    def shortcut(self, x: Tensor) -> Tensor:
        """The input, subsampled and with zeros for the new channels: no parameters."""
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            before = self.new_channels // 2
            x = F.pad(x, (0, 0, 0, 0, before, self.new_channels - before))
        return x

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """6n + 2 layers: 3 stages of n blocks with 16, 32 and 64 channels; [B, 3, H, W] -> logits."""

    block: type[BasicBlock] = BasicBlock

    def __init__(self, depth: int, num_classes: int = 10) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if blocks < 1 or rest:
            raise ValueError(f'depth must be 6n + 2 with n >= 1, not {depth}')
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.stage1 = self._stage(blocks, 16, 16, stride=1)
        self.stage2 = self._stage(blocks, 16, 32, stride=2)
        self.stage3 = self._stage(blocks, 32, 64, stride=2)
        self.classifier = nn.Linear(64, num_classes)
        kaiming(self)

    def _stage(self, blocks: int, in_channels: int, channels: int, stride: int) -> nn.Sequential:
        first = self.block(in_channels, channels, stride)
        return nn.Sequential(first, *(self.block(channels, channels, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))  # [B, 16, H, W]
        x = self.stage3(self.stage2(self.stage1(x)))  # [B, 64, H/4, W/4]
        return self.classifier(torch.mean(x, dim=(2, 3)))


def resnet20(num_classes: int = 10) -> ResNet:
    """0.27 M parameters."""
    return ResNet(20, num_classes)


def resnet32(num_classes: int = 10) -> ResNet:
    """0.46 M parameters."""
    return ResNet(32, num_classes)


def resnet44(num_classes: int = 10) -> ResNet:
    """0.66 M parameters."""
    return ResNet(44, num_classes)


def resnet56(num_classes: int = 10) -> ResNet:
    """0.85 M parameters."""
    return ResNet(56, num_classes)


def resnet110(num_classes: int = 10) -> ResNet:
    """1.7 M parameters."""
    return ResNet(110, num_classes)
