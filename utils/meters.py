"""What is measured on a split of the data, as sums that are added up over the ranks.

A meter has ``update(outputs, targets)`` for a batch, ``sums()`` of this rank, ``value(sums)`` of
all ranks' sums, and ``better``: 'higher' or 'lower', whichever is better; without it, 'higher'.
Ranks may have different numbers of samples: only sums and counts are added up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from datasets.letters import LETTERS, greedy, spell
from datasets.windows import IGNORED

# How the names of meters begin, which the line of an epoch shows.
QUALITY = ('loss/', 'acc/', 'perplexity/', 'bits_per_byte/', 'r2/', 'error/')


class MeterError(ValueError):
    """What a model returns cannot be measured by a meter. The message names what to change."""


def check_tensor(outputs: object) -> None:
    """Raise MeterError for a model that returns something else, such as a tuple."""
    if not isinstance(outputs, Tensor):
        raise MeterError(
            'it measures a tensor, and in evaluation the model returns a '
            f'{type(outputs).__name__}: have it return a tensor, write a meter of your own'
        )


class TopK:
    """Top-k accuracy: percentage of samples whose class is among those with the k highest scores.

    Args:
        k: Number of classes that count as a hit.
    """

    better = 'higher'

    def __init__(self, k: int = 1) -> None:
        self.k = k
        self.correct = 0
        self.count = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count a batch: scores ``[B, classes]`` and integer classes ``[B]``.

        Raises:
            MeterError: For tensors that are not these, or no more than k classes, of which the k
                best are always a hit, or none.
        """
        check_tensor(outputs)
        whole = not targets.is_floating_point() and not targets.is_complex()
        if outputs.dim() != 2 or targets.shape != outputs.shape[:1] or not whole:
            raise MeterError(
                f'top-{self.k} accuracy compares scores [batch, classes] with whole numbers '
                f'[batch], and the model returns {list(outputs.shape)} for targets '
                f'{list(targets.shape)} of {targets.dtype}: choose another meter, in a config file'
            )
        if self.k < 1:
            raise MeterError(f'top-{self.k} accuracy is always 0 %: set k to 1 or more')
        if self.k >= outputs.shape[1]:
            raise MeterError(
                f'top-{self.k} accuracy is always 100 % of {outputs.shape[1]} classes: '
                f'set k below {outputs.shape[1]}'
            )
        best = outputs.topk(self.k, dim=1).indices
        self.correct += int((best == targets[:, None]).sum())
        self.count += len(targets)

    def sums(self) -> Tensor:
        """float64 ``[2]``: hits and samples of this rank, to be added up over the ranks."""
        return torch.tensor([self.correct, self.count], dtype=torch.float64)

    @staticmethod
    def value(sums: Tensor) -> float:
        """Percent, from the sums of all ranks."""
        return 100 * float(sums[0]) / max(float(sums[1]), 1)


class Likelihood:
    """Sums the negative log-likelihoods of classes, of which subclasses return a function.

    Positions whose class is ``IGNORED`` are left out.
    """

    better = 'lower'

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count a batch: scores ``[..., classes]`` and integer classes ``[...]``.

        Raises:
            MeterError: For tensors that are not these.
        """
        check_tensor(outputs)
        whole = not targets.is_floating_point() and not targets.is_complex()
        if outputs.dim() < 2 or targets.shape != outputs.shape[:-1] or not whole:
            raise MeterError(
                f'the likelihood needs scores [..., classes] and whole numbers [...], and the '
                f'model returns {list(outputs.shape)} for targets {list(targets.shape)} of '
                f'{targets.dtype}: choose another meter, in a config file'
            )
        flat = targets.flatten()
        losses = F.cross_entropy(
            outputs.flatten(0, -2).float(), flat, ignore_index=IGNORED, reduction='sum'
        )
        self.total += float(losses)
        self.count += int((flat != IGNORED).sum())

    def sums(self) -> Tensor:
        """float64 ``[2]``: nats and classes of this rank, to be added up over the ranks."""
        return torch.tensor([self.total, self.count], dtype=torch.float64)


class CrossEntropy(Likelihood):
    """The mean loss, in nats per class."""

    @staticmethod
    def value(sums: Tensor) -> float:
        """Nats, from the sums of all ranks."""
        return float(sums[0]) / max(float(sums[1]), 1)


class Perplexity(Likelihood):
    """The exponential of the mean loss per token; infinite where that exceeds float64."""

    @staticmethod
    def value(sums: Tensor) -> float:
        """From the sums of all ranks."""
        return float(torch.exp(sums[0].double() / sums[1].clamp(min=1)))


class BitsPerByte(Likelihood):
    """The mean loss in bits. Its unit is a token: a byte, where tokens are bytes."""

    @staticmethod
    def value(sums: Tensor) -> float:
        """Bits, from the sums of all ranks."""
        return float(sums[0]) / max(float(sums[1]), 1) / math.log(2)


class R2:
    """The coefficient of determination of a regression: 1 - squared errors / variance of targets.

    1 is perfect, and 0 what the targets' mean would reach. All elements of a target count alike.
    """

    better = 'higher'

    def __init__(self) -> None:
        self._sums = torch.zeros(4, dtype=torch.float64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count a batch of predictions and targets of the same shape.

        Raises:
            MeterError: Where their shapes differ.
        """
        check_tensor(outputs)
        if outputs.shape != targets.shape:
            raise MeterError(
                f'R² compares outputs and targets of one shape, and the model returns '
                f'{list(outputs.shape)} for targets {list(targets.shape)}'
            )
        outputs, targets = outputs.double(), targets.double()
        errors = (outputs - targets).square().sum()
        count = errors.new_tensor(targets.numel())
        self._sums += torch.stack([errors, targets.sum(), targets.square().sum(), count]).cpu()

    def sums(self) -> Tensor:
        """float64 ``[4]``: squared errors, targets, squared targets, and their number."""
        return self._sums.clone()

    @staticmethod
    def value(sums: Tensor) -> float:
        """From the sums of all ranks; 0 where all targets are equal."""
        errors, total, squares, count = (float(each) for each in sums)
        spread = squares - total**2 / max(count, 1)
        return 1 - errors / spread if spread > 0 else 0.0


class ErrorRate(ABC):
    """Edits that turn what was recognized into the transcript, in percent of its length.

    An edit inserts, removes or replaces one unit. Outputs are decoded greedily, as CTC's.

    Args:
        letters: Those of the classes from 1.
    """

    better = 'lower'

    def __init__(self, letters: str = LETTERS) -> None:
        self.letters = letters
        self.edits = 0
        self.units = 0

    @abstractmethod
    def units_of(self, text: str) -> Sequence[str]:
        """The units of a text."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count a batch: scores ``[batch, frames, classes]``, letters ``[batch, length]``.

        Raises:
            MeterError: For tensors that are not these.
        """
        check_tensor(outputs)
        classes = 1 + len(self.letters)
        if outputs.dim() != 3 or outputs.shape[-1] != classes or targets.dim() != 2:
            raise MeterError(
                f'an error rate needs scores [batch, frames, {classes}] and letters [batch, '
                f'length], and the model returns {list(outputs.shape)} for targets '
                f'{list(targets.shape)}'
            )
        for text, target in zip(greedy(outputs, self.letters), targets.tolist(), strict=True):
            truth = self.units_of(spell(target, self.letters))
            self.edits += edits(self.units_of(text), truth)
            self.units += len(truth)

    def sums(self) -> Tensor:
        """float64 ``[2]``: edits, and units of the transcripts."""
        return torch.tensor([self.edits, self.units], dtype=torch.float64)

    @staticmethod
    def value(sums: Tensor) -> float:
        """Percent, from the sums of all ranks; above 100 where too much was recognized."""
        return 100 * float(sums[0]) / max(float(sums[1]), 1)


class CharacterErrorRate(ErrorRate):
    """The error rate in characters, spaces between words among them."""

    def units_of(self, text: str) -> Sequence[str]:
        """The characters of a text."""
        return text


class WordErrorRate(ErrorRate):
    """The error rate in words."""

    def units_of(self, text: str) -> Sequence[str]:
        """The words of a text."""
        return text.split()


def edits(first: Sequence[str], second: Sequence[str]) -> int:
    """The Levenshtein distance of two sequences."""
    row = list(range(len(second) + 1))
    for i, left in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


class Ranking:
    """Which of two values of a metric is better.

    Args:
        better: 'higher' or 'lower'.
    """

    def __init__(self, better: str = 'higher') -> None:
        if better not in ('higher', 'lower'):
            raise ValueError(f"a meter's better is 'higher' or 'lower', and not {better!r}")
        self.better = better

    def improves(self, value: float, best: float | None) -> bool:
        """Whether ``value`` is better than the best so far, None or NaN for none. A value that is
        NaN never is."""
        if math.isnan(value):
            return False
        if best is None or math.isnan(best):
            return True
        return value > best if self.better == 'higher' else value < best

    def best(self, values: Iterable[float]) -> float:
        """The best of some values, of which there is at least one."""
        first, *others = values
        for value in others:
            first = value if self.improves(value, first) else first
        return first
