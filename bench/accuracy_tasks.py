"""What bench.accuracy trains: networks, their data, optimizers, and how their quality is measured.

torch is imported only in a worker.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader, Dataset

TEST_BATCH = 250  # samples


@dataclass(frozen=True)
class Task(ABC):
    """A network and its data.

    Attributes:
        about: One line.
        needs: What the folder of ``--root`` must hold.
        unit: Of the quality, as it follows a number.
        higher: Whether a higher quality is better.
        is_adaptive: Whether AdamW trains it, without weight decay; else SGD with momentum.
        lr: The highest learning rate, of all workers.
        batch: Samples per worker and step.
        samples: Training samples of an epoch.
        target: The quality that is to be reached.
    """

    about: str
    needs: str
    unit: str
    higher: bool
    is_adaptive: bool
    lr: float
    batch: int
    samples: int
    target: float

    def reaches(self, quality: float, target: float) -> bool:
        """Return whether ``quality`` is at least as good as ``target``."""
        return quality >= target if self.higher else quality <= target

    def rate_at(self, step: int, steps: int, epochs: int) -> float:
        """Return a step's learning rate: one epoch of linear warm-up, then a cosine to zero.

        Args:
            step: Counted from 0.
            steps: Of an epoch.
            epochs: In all.
        """
        if step < steps:
            return self.lr * (step + 1) / steps
        return self.lr * (1 + math.cos(math.pi * (step - steps) / (steps * (epochs - 1) or 1))) / 2

    def optimizer(
        self, parameters: Iterable[nn.Parameter], betas: tuple[float, float] = (0.9, 0.99)
    ) -> Optimizer:
        """Return what trains the parameters; ``betas`` are AdamW's."""
        from torch.optim import SGD, AdamW

        if self.is_adaptive:
            return AdamW(parameters, self.lr, betas, weight_decay=0.0)
        return SGD(parameters, self.lr, 0.9, weight_decay=1e-4)

    @abstractmethod
    def network(self) -> nn.Module:
        """Return a new network."""

    @abstractmethod
    def data(self, root: Path, samples: int) -> Mapping[str, Dataset[Any]]:
        """Return data sets 'train', of ``samples`` samples, and 'test'."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch, a scalar."""

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Return two numbers, whose sums over all test batches are those of ``quality``."""

    @abstractmethod
    def quality(self, sums: tuple[float, float]) -> float:
        """Return the quality over all test samples."""


class Images(Task):
    """CIFAR-10; the quality is the accuracy in percent."""

    def network(self) -> nn.Module:
        """Return the network of that name in ``models.cifar``."""
        import models.cifar

        network: nn.Module = getattr(models.cifar, self.about.split()[0].lower())(10)
        return network

    def data(self, root: Path, samples: int) -> Mapping[str, Dataset[Any]]:
        """Return the first ``samples`` training images, and all test images."""
        from datasets import CIFAR

        return CIFAR(str(root), download=False, verify=False, num_train=samples)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets)

    def sums(self, outputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Return how many images are classified correctly, and how many there are."""
        return float((outputs.argmax(1) == targets).sum()), float(len(targets))

    def quality(self, sums: tuple[float, float]) -> float:
        """Return the accuracy."""
        return 100 * sums[0] / sums[1]


@dataclass(frozen=True)
class Text(Task):
    """A GPT on the bytes of a text; the quality is the loss in nats per byte.

    Attributes:
        layers: Of the GPT.
    """

    layers: int

    def network(self) -> nn.Module:
        """Return the GPT, for windows of 128 bytes."""
        from models.transformer import GPT

        return GPT(vocabulary=256, layers=self.layers, context=128)

    def data(self, root: Path, samples: int) -> Mapping[str, Dataset[Any]]:
        """Return the windows of the training part, and those of the end of the text."""
        from torch.utils.data import Subset

        from datasets import TextFile

        text = TextFile(str(root / self.needs))
        windows = text['train']
        size = len(windows)  # type: ignore[arg-type]
        return {**text, 'train': Subset(windows, range(min(samples, size)))}

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy over all positions."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def sums(self, outputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """Return the summed loss of all bytes, and their number."""
        count = float(targets.numel())
        return float(self.loss(outputs, targets)) * count, count

    def quality(self, sums: tuple[float, float]) -> float:
        """Return the loss of a byte."""
        return sums[0] / sums[1]


CIFAR_10, TEXT = 'cifar-10-batches-py', 'tinyshakespeare/input.txt'
TASKS: dict[str, Task] = {
    'resnet20': Images('ResNet20 on CIFAR-10', CIFAR_10, '%', True, False, 0.1, 32, 10_000, 45.0),
    'vgg16': Images('VGG16 on CIFAR-10', CIFAR_10, '%', True, False, 0.02, 8, 1_600, 35.0),
    'gpt': Text(
        'a GPT of 6.3 M parameters on the bytes of a text, with AdamW',
        *(TEXT, ' nats', False, True, 1e-3, 1, 400, 2.5, 5),
    ),
    'gpt-small': Text(
        'a GPT of 1.4 M parameters on the bytes of a text, with AdamW',
        *(TEXT, ' nats', False, True, 1e-3, 4, 1_600, 2.4, 3),
    ),
}


def test_loader(dataset: Dataset[Any], most: int, rank: int, size: int) -> DataLoader[Any]:
    """Return a loader of a rank's part of the first ``most`` samples."""
    from torch.utils.data import Subset

    from utils.data import evaluation_loader

    samples = len(dataset)  # type: ignore[arg-type]
    return evaluation_loader(Subset(dataset, range(min(most, samples))), TEST_BATCH, rank, size)
