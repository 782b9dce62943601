"""Inception v4: Szegedy et al., "Inception-v4, Inception-ResNet", AAAI 2017, figures 3 to 9."""

import torch
from torch import Tensor, nn

__all__ = ['InceptionV4', 'inception_v4']

Kernel = int | tuple[int, int]


class Conv(nn.Sequential):
    """Convolution, BatchNorm, ReLU. Without `valid`, a stride of 1 keeps height and width."""

    def __init__(
        self, in_channels: int, channels: int, kernel: Kernel, stride: int = 1, valid: bool = False
    ) -> None:
        sides = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (0, 0) if valid else (sides[0] // 2, sides[1] // 2)
        super().__init__(
            nn.Conv2d(in_channels, channels, sides, stride, padding, bias=False),
            nn.BatchNorm2d(channels, eps=1e-3),
            nn.ReLU(),
        )


def same(in_channels: int, *layers: tuple[int, Kernel]) -> list[nn.Module]:
    """Convolutions that keep height and width; each layer is its channels and its kernel."""
    found: list[nn.Module] = []
    for channels, kernel in layers:
        found.append(Conv(in_channels, channels, kernel))
        in_channels = channels
    return found


class Branches(nn.ModuleList):
    """Several paths from one input, whose outputs are concatenated by channel."""

    def __init__(self, *paths: list[nn.Module]) -> None:
        super().__init__(nn.Sequential(*path) for path in paths)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([path(x) for path in self], dim=1)


def halve() -> nn.Module:
    """The pooling of stem and reductions: [B, C, H, W] -> [B, C, (H-1)/2, (W-1)/2]."""
    return nn.MaxPool2d(3, stride=2)


def mean() -> nn.Module:
    """The pooling of the Inception blocks, which keeps height and width."""
    return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)


def stem() -> nn.Sequential:
    """[B, 3, 299, 299] -> [B, 384, 35, 35]: figure 3."""
    return nn.Sequential(
        Conv(3, 32, 3, stride=2, valid=True),
        Conv(32, 32, 3, valid=True),
        Conv(32, 64, 3),
        Branches([halve()], [Conv(64, 96, 3, stride=2, valid=True)]),  # 160
        Branches(
            [*same(160, (64, 1)), Conv(64, 96, 3, valid=True)],
            [*same(160, (64, 1), (64, (1, 7)), (64, (7, 1))), Conv(64, 96, 3, valid=True)],
        ),  # 192
        Branches([Conv(192, 192, 3, stride=2, valid=True)], [halve()]),
    )


def block_a() -> Branches:
    """[B, 384, 35, 35] -> the same: figure 4."""
    return Branches(
        [mean(), *same(384, (96, 1))],
        same(384, (96, 1)),
        same(384, (64, 1), (96, 3)),
        same(384, (64, 1), (96, 3), (96, 3)),
    )


def reduction_a() -> Branches:
    """[B, 384, 35, 35] -> [B, 1024, 17, 17]: figure 7, with k, l, m, n = 192, 224, 256, 384."""
    return Branches(
        [halve()],
        [Conv(384, 384, 3, stride=2, valid=True)],
        [*same(384, (192, 1), (224, 3)), Conv(224, 256, 3, stride=2, valid=True)],
    )


def block_b() -> Branches:
    """[B, 1024, 17, 17] -> the same: figure 5."""
    row, column = (1, 7), (7, 1)
    return Branches(
        [mean(), *same(1024, (128, 1))],
        same(1024, (384, 1)),
        same(1024, (192, 1), (224, row), (256, column)),
        same(1024, (192, 1), (192, row), (224, column), (224, row), (256, column)),
    )


def reduction_b() -> Branches:
    """[B, 1024, 17, 17] -> [B, 1536, 8, 8]: figure 8."""
    return Branches(
        [halve()],
        [*same(1024, (192, 1)), Conv(192, 192, 3, stride=2, valid=True)],
        [
            *same(1024, (256, 1), (256, (1, 7)), (320, (7, 1))),
            Conv(320, 320, 3, stride=2, valid=True),
        ],
    )


def block_c() -> Branches:
    """[B, 1536, 8, 8] -> the same: figure 6."""
    row, column = (1, 3), (3, 1)
    return Branches(
        [mean(), *same(1536, (256, 1))],
        same(1536, (256, 1)),
        [*same(1536, (384, 1)), Branches(same(384, (256, row)), same(384, (256, column)))],
        [
            *same(1536, (384, 1), (448, row), (512, column)),
            Branches(same(512, (256, row)), same(512, (256, column))),
        ],
    )


class InceptionV4(nn.Module):
    """Stem, 4 blocks A, 7 blocks B, 3 blocks C: [B, 3, 299, 299] -> logits [B, num_classes].

    Args:
        num_classes: Number of logits.
        dropout: Probability, before the last layer.
    """

    def __init__(self, num_classes: int = 1000, dropout: float = 0.2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            stem(),
            *(block_a() for _ in range(4)),
            reduction_a(),
            *(block_b() for _ in range(7)),
            reduction_b(),
            *(block_c() for _ in range(3)),
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(1536, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.mean(self.features(x), dim=(2, 3))  # [B, 1536]
        return self.classifier(self.dropout(x))


def inception_v4(num_classes: int = 1000) -> InceptionV4:
    """42.7 M parameters."""
    return InceptionV4(num_classes)
