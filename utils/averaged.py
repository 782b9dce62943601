"""Averages of weights: an exponential one over steps, and the mean of several checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from utils.checkpoint import is_finite

LOW_PRECISION = (torch.float16, torch.bfloat16)


class AveragedWeights:
    """ŵ ← decay·ŵ + (1 - decay)·w after every step, from the first step's w on; of buffers too.

    It is computed from the parameters, so it is the same on all ranks. What has no average is that
    of the last step: whole numbers, such as indices, and tensors that the model is built with and
    that are not finite, such as a mask of -inf, which would become NaN.

    Averages of a type below float32 are computed and saved in float32, since a step changes them by
    less than bfloat16 and float16 resolve.

    Args:
        model: Whose weights are averaged, before it is wrapped.
        decay: Between 0 and 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        update = get_ema_multi_avg_fn(decay)
        self._averaged = AveragedModel(model, multi_avg_fn=update, use_buffers=True)
        self._copied = [not has_average(tensor) for tensor in all_tensors(model)]
        self._decay = decay
        self._wide = {
            name: average.float()
            for name, average in named_tensors(self.model)
            if average.dtype in LOW_PRECISION and has_average(average)
        }

    @property
    def model(self) -> nn.Module:
        """The network with the averages."""
        module: nn.Module = self._averaged.module
        return module

    @property
    def is_empty(self) -> bool:
        """Whether no step has been taken: there is nothing to go on from yet."""
        return bool(self._averaged.n_averaged == 0)

    def update(self, model: nn.Module) -> None:
        """Add the weights after a step."""
        is_first = self.is_empty
        self._averaged.update_parameters(model)
        pairs = zip(all_tensors(self.model), all_tensors(model), self._copied, strict=True)
        for average, value, is_copied in pairs:
            if is_copied:
                average.copy_(value)
        if self._wide:
            averages, values = dict(named_tensors(self.model)), dict(named_tensors(model))
            for name, wide in self._wide.items():
                wide.lerp_(values[name].float(), 1.0 if is_first else 1 - self._decay)
                averages[name].copy_(wide)

    def state_dict(self) -> dict[str, Any]:
        """The averages by the names of the model."""
        state = self.model.state_dict()
        return {**state, **{name: wide for name, wide in self._wide.items() if name in state}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict()``."""
        self.model.load_state_dict(state)
        for name in self._wide.keys() & state.keys():
            self._wide[name].copy_(state[name])
        self._averaged.n_averaged.fill_(1)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and all buffers of a model by name, also those that are not saved."""
    named = chain(model.named_parameters(), model.named_buffers())
    return ((name, each.detach()) for name, each in named)


def all_tensors(model: nn.Module) -> Iterator[Tensor]:
    """The parameters and all buffers of a model, also those that are not saved."""
    return (each.detach() for each in chain(model.parameters(), model.buffers()))


def has_average(tensor: Tensor) -> bool:
    """Whether a tensor is of numbers that can be averaged, and all of them are finite."""
    return (tensor.is_floating_point() or tensor.is_complex()) and is_finite(tensor)


class Mean:
    """The mean of several states of a model, computed in float64.

    Running statistics are averaged like weights. Tensors of whole numbers, such as a count of
    steps, are those of the first state that is added.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._first: dict[str, Tensor] = {}
        self._count = 0

    def add(self, state: Mapping[str, Tensor]) -> None:
        """Add a state, with the names and shapes of the others."""
        self._count += 1
        if not self._first:
            self._first = dict(state)
        for name, tensor in state.items():
            if tensor.is_floating_point() or tensor.is_complex():
                wide = torch.complex128 if tensor.is_complex() else torch.float64
                term = tensor.to('cpu', wide)
                self._sums[name] = term + self._sums[name] if name in self._sums else term

    def state_dict(self) -> dict[str, Tensor]:
        """The mean, in the types of the first state."""
        means = {
            name: (total / self._count).to(self._first[name].dtype)
            for name, total in self._sums.items()
        }
        return {**self._first, **means}
