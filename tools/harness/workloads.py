"""Workloads: networks, batches of synthetic data that fit them, and the optimizer's settings.

torch is imported only where something is made, so that command lines are checked at once.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from dgc import Composition

MODEL_SEED = 1  # the same on all ranks, so that no weights have to be sent
BATCHES = 8  # different batches, which are used in turn
SGD_SETTINGS: dict[str, Any] = {'lr': 0.01, 'momentum': 0.9, 'weight_decay': 1e-4}


class Workload(NamedTuple):
    """A network and the shape of its data.

    model: import path of its constructor, which takes the number of classes.
    shape: of one sample: [C, H, W] of an image, [T] of a text.
    classes: number of classes; of a language model, the size of its vocabulary.
    """

    model: str
    shape: tuple[int, ...]
    classes: int

    @property
    def is_language(self) -> bool:
        """Whether a sample is a text, each of whose tokens is predicted."""
        return len(self.shape) == 1


WORKLOADS = {
    'resnet20': Workload('models.cifar:resnet20', (3, 32, 32), 10),
    'resnet56': Workload('models.cifar:resnet56', (3, 32, 32), 10),
    'vgg16': Workload('models.cifar:vgg16', (3, 32, 32), 10),
    'lstm': Workload('models.language:lstm_language_model', (35,), 10_000),
    'transformer': Workload('models.language:transformer_language_model', (64,), 10_000),
    'digits': Workload('models.digits:digits_cnn', (1, 8, 8), 10),
}


class Batch(NamedTuple):
    """inputs: images [B, C, H, W] or tokens [B, T]; targets: classes [B] or [B, T]."""

    inputs: Tensor
    targets: Tensor


def make_model(workload: Workload) -> nn.Module:
    """The network in training mode, with the same initial weights on every rank and every time."""
    import torch

    torch.manual_seed(MODEL_SEED)
    return pkgutil.resolve_name(workload.model)(workload.classes).train()


def sgd_for(composition: Composition, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Momentum SGD; if the composition's memory holds the momentum, without momentum of its own."""
    from torch.optim import SGD

    from dgc import DGCSGD

    kind = DGCSGD if composition.memory.holds_momentum else SGD
    return kind(parameters, **SGD_SETTINGS)


def is_trained_by_sgd(composition: Composition) -> bool:
    """Whether a composition accepts the workloads' momentum SGD; some need another optimizer."""
    import torch

    from dgc.wiring import check_momentum

    try:
        check_momentum(sgd_for(composition, [torch.nn.Parameter(torch.zeros(1))]), composition)
    except ValueError:
        return False
    return True


def make_batches(workload: Workload, size: int, rank: int) -> list[Batch]:
    """BATCHES random batches of ``size`` samples: different on each rank, the same every time."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    batches = []
    for _ in range(BATCHES):
        if workload.is_language:
            (length,) = workload.shape
            text = torch.randint(workload.classes, (size, length + 1), generator=generator)
            batches.append(Batch(text[:, :-1], text[:, 1:]))
        else:
            images = torch.randn(size, *workload.shape, generator=generator)
            labels = torch.randint(workload.classes, (size,), generator=generator)
            batches.append(Batch(images, labels))
    return batches


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits [..., classes] and targets [...]: a scalar."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.flatten(0, -2), targets.flatten())
