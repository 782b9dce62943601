"""The loss function, checked before training and in every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from utils.config import Config, ConfigError


def build_criterion(configs: Config, device: torch.device) -> nn.Module:
    """The configured loss function, which refuses to return anything but a scalar.

    Raises:
        ConfigError: If it is no module, or has parameters: only those of the model are trained,
            averaged and saved.
    """
    node = configs.train.criterion
    criterion = node.build()
    if not isinstance(criterion, nn.Module):
        raise ConfigError(
            f'{node._path()}: it makes a {type(criterion).__name__}, and must make a '
            'torch.nn.Module that is called with outputs and targets'
        )
    trained = [name for name, each in criterion.named_parameters() if each.requires_grad]
    if trained:
        name, several = type(criterion).__name__, ', '.join(trained[:3])
        raise ConfigError(
            f'{node._path()}: {name} has parameters ({several}), and only those of '
            'configs.model are trained and saved: make them part of the model, or set '
            'requires_grad = False'
        )
    criterion.register_forward_hook(check_loss)
    return criterion.to(device)


def check_loss(criterion: nn.Module, _inputs: Any, loss: Any) -> None:
    """Raise ConfigError for a loss that is no scalar. A forward hook."""
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return
    shown = f'a tensor {list(loss.shape)}' if isinstance(loss, Tensor) else type(loss).__name__
    raise ConfigError(
        f'configs.train.criterion: {type(criterion).__name__} returned {shown}; return a scalar, '
        "such as the mean over the batch (reduction 'mean')"
    )
