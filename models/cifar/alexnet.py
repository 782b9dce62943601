"""AlexNet for 32x32 images: the convolutions of Krizhevsky, "One weird trick", arXiv 1404.5997.

On 32x32 images the three poolings leave one pixel, so a single linear layer takes the place of the
three that the ImageNet network ends with.
"""

import torch
from torch import Tensor, nn

__all__ = ['AlexNet', 'alexnet']


class AlexNet(nn.Module):
    """Five convolutions and one linear layer: [B, 3, 32, 32] -> logits [B, num_classes]."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 11, stride=4, padding=5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.classifier = nn.Linear(256, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


def alexnet(num_classes: int = 10) -> AlexNet:
    """2.5 M parameters."""
    return AlexNet(num_classes)
