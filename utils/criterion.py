"""The loss function, checked before training and in every step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from utils.config import Config, ConfigError

# What torch raises for arguments and settings; running out of memory is an error of another class.
REFUSALS = (IndexError, RuntimeError, TypeError, ValueError)


class CheckedLoss(nn.Module):
    """A loss function, which ends a run with one line where it does not fit model or data.

    Args:
        criterion: Is called with outputs and targets.
        setting: By which it was configured, such as 'configs.train.criterion'.
    """

    def __init__(self, criterion: nn.Module, setting: str) -> None:
        super().__init__()
        self.criterion = criterion
        self._setting = setting

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss.

        Raises:
            ConfigError: If it is no scalar, or a loss function of torch refuses its settings or
                the tensors. What one of the user's own raises is passed on.
        """
        try:
            loss = self.criterion(outputs, targets)
        except Exception as error:
            if not is_refusal(self.criterion, error):
                raise
            raise ConfigError(
                f'{self._name} refuses outputs: {shown(outputs)}; targets: {shown(targets)} '
                f'({error}): choose settings of the loss and of the model that fit the data'
            ) from error
        if not isinstance(loss, Tensor) or loss.dim() > 0:
            raise ConfigError(
                f'{self._name} returned {shown(loss)}; return a scalar, such as the mean over the '
                "batch (reduction 'mean')"
            )
        return loss

    @property
    def _name(self) -> str:
        return f'{self._setting}: {type(self.criterion).__name__}'


def is_refusal(criterion: nn.Module, error: Exception) -> bool:
    """Whether a loss function of torch raised an error for what it was given.

    An error of CUDA may be of an earlier kernel.
    """
    of_torch = type(criterion).__module__.partition('.')[0] == 'torch'
    return of_torch and type(error) in REFUSALS and not str(error).startswith('CUDA')


def shown(value: object) -> str:
    """A tensor's shape, type and range, or the class of another object, in an error."""
    if not isinstance(value, Tensor):
        return f'a {type(value).__name__}'
    text = f'{value.dtype} {list(value.shape)}'.removeprefix('torch.')
    is_whole = not value.is_floating_point() and not value.is_complex()
    return f'{text} from {value.min()} to {value.max()}' if is_whole and value.numel() else text


def build_criterion(configs: Config, device: torch.device) -> nn.Module:
    """The configured loss function, which is checked in every step.

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
    return CheckedLoss(criterion, node._path()).to(device)
