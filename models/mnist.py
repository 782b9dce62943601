"""Small networks for 28x28 grey images, with the sizes that the released trainers of OMGS-SGD have.

https://github.com/HKBU-HPML/OMGS-SGD
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ['MnistNet', 'fcn5', 'logistic_regression', 'mnistnet']

PIXELS = 28 * 28


class MnistNet(nn.Module):
    """Two 5x5 convolutions, two linear layers, dropout: [B, 1, 28, 28] -> logits."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.channel_dropout = nn.Dropout2d()
        self.hidden = nn.Linear(20 * 4 * 4, 50)
        self.dropout = nn.Dropout()
        self.classifier = nn.Linear(50, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # [B, 10, 12, 12]
        x = F.relu(F.max_pool2d(self.channel_dropout(self.conv2(x)), 2))  # [B, 20, 4, 4]
        x = F.relu(self.hidden(torch.flatten(x, 1)))
        return self.classifier(self.dropout(x))


def mnistnet(num_classes: int = 10) -> MnistNet:
    """21,840 parameters."""
    return MnistNet(num_classes)


def fcn5(hidden: int = 200, num_classes: int = 10) -> nn.Module:
    """Three linear layers, 199,210 parameters; its release calls it FCN5Net."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(PIXELS, hidden), nn.ReLU()),
        *(nn.Linear(hidden, hidden), nn.ReLU()),
        nn.Linear(hidden, num_classes),
    )


def logistic_regression(num_classes: int = 10) -> nn.Module:
    """One linear layer, 7,850 parameters; the cross entropy adds the softmax."""
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, num_classes))
