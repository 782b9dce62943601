"""Pre-activation ResNets for CIFAR: He et al., "Identity Mappings", ECCV 2016, figure 4 (e)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.cifar.resnet import BasicBlock, ResNet

__all__ = ['PreResNet', 'preresnet110']


class PreActivationBlock(BasicBlock):
    """BatchNorm and ReLU before each 3x3 convolution, and nothing after the addition."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__(in_channels, channels, stride)
        self.bn1 = nn.BatchNorm2d(in_channels)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        return out + self.shortcut(x)


class PreResNet(ResNet):
    """6n + 2 layers, as in ResNet; [B, 3, H, W] -> logits."""

    block = PreActivationBlock

    def __init__(self, depth: int, num_classes: int = 10) -> None:
        super().__init__(depth, num_classes)
        self.bn = nn.BatchNorm2d(64)  # after the last block, not after the first convolution

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.stage1(self.conv(x))))  # [B, 64, H/4, W/4]
        return self.classifier(torch.mean(F.relu(self.bn(x)), dim=(2, 3)))


def preresnet110(num_classes: int = 10) -> PreResNet:
    """1.7 M parameters."""
    return PreResNet(110, num_classes)
