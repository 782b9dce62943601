"""LeNet-5: LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ['LeNet', 'lenet']

SIDE = 32  # of the images that the layers are made for


class LeNet(nn.Module):
    """Two 5x5 convolutions, three linear layers: [B, C, H, H] -> logits [B, num_classes].

    As in today's versions, ReLU and maxima take the place of sigmoids and trained means, and each
    channel of the second convolution sees all of the first. Images of fewer than 32 pixels a side
    are surrounded by zeros, as in the paper; larger ones are refused.
    """

    def __init__(self, in_channels: int = 1, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.hidden1 = nn.Linear(16 * 5 * 5, 120)
        self.hidden2 = nn.Linear(120, 84)
        self.classifier = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if max(height, width) > SIDE:
            raise ValueError(
                f'LeNet takes images of at most {SIDE} x {SIDE} pixels, got {height} x {width}: '
                'resize them, or choose another network'
            )
        top, left = (SIDE - height) // 2, (SIDE - width) // 2
        x = F.pad(x, (left, SIDE - width - left, top, SIDE - height - top))  # [B, C, 32, 32]
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # [B, 6, 14, 14]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # [B, 16, 5, 5]
        x = F.relu(self.hidden1(torch.flatten(x, 1)))
        return self.classifier(F.relu(self.hidden2(x)))


def lenet(in_channels: int = 1, num_classes: int = 10) -> LeNet:
    """61,706 parameters on grey images, 62,006 on images of three colours."""
    return LeNet(in_channels, num_classes)
