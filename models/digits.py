"""A small convolutional network for 8x8 grey images of digits."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.initialise import kaiming

__all__ = ['DigitsCNN', 'digits_cnn']


class DigitsCNN(nn.Module):
    """Two 3x3 convolutions, two linear layers: [B, 1, 8, 8] -> logits [B, num_classes]."""

    def __init__(self, channels: int = 32, hidden: int = 64, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * channels)
        self.hidden = nn.Linear(2 * channels * 2 * 2, hidden)
        self.classifier = nn.Linear(hidden, num_classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)  # [B, C, 4, 4]
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)  # [B, 2C, 2, 2]
        x = F.relu(self.hidden(torch.flatten(x, 1)))
        return self.classifier(x)


def digits_cnn(num_classes: int = 10) -> DigitsCNN:
    """The network of the digits experiments, with 36 k parameters."""
    return DigitsCNN(num_classes=num_classes)
