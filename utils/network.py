"""A network before it is trained: weights of a file, recomputation, compilation."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from utils.checkpoint import evaluated_weights
from utils.config import Config, ConfigError

ENABLE = 'gradient_checkpointing_enable'  # the method's name in the transformers library
NAMED = 3  # tensors in one line


def prepared(model: nn.Module, configs: Config) -> nn.Module:
    """Return ``model``, after what the settings ask for before it is wrapped.

    Raises:
        ConfigError: For a file that does not fit it, or a model that cannot recompute.
    """
    if configs.pretrained.file is not None:
        load_pretrained(model, Path(configs.pretrained.file), configs.pretrained.skip)
    if configs.train.recompute:
        if not hasattr(model, ENABLE):
            raise ConfigError(
                f'configs.train.recompute = True: {type(model).__name__} has no method {ENABLE}(): '
                'leave it out, or give the model one (docs/training.md#recomputation)'
            )
        getattr(model, ENABLE)()
    if configs.train.compile is not None:
        model.compile(backend=configs.train.compile)
    return model


def load_pretrained(model: nn.Module, path: Path, skip: Sequence[str] = ()) -> None:
    """Copy the weights of a file into ``model``.

    Args:
        model: Gets them.
        path: A state of a model as torch.save writes it, or a checkpoint of train.py, of which the
            weights are copied that were evaluated.
        skip: Patterns of names that are not copied, such as the layer of the classes. Each fits a
            name of the model or of the file.

    Raises:
        ConfigError: If the file cannot be read, or names or shapes differ; it names them.
    """
    setting = f'configs.pretrained.file = {path}'
    saved, own = read_weights(path, setting), model.state_dict()
    names = {**own, **saved}
    unused = [pattern for pattern in skip if not any(fnmatchcase(name, pattern) for name in names)]
    if unused:
        raise ConfigError(
            f'configs.pretrained.skip: {unused[0]!r} is no name in the model or in {path}; leave '
            'it out'
        )
    taken = {name for name in names if not any(fnmatchcase(name, s) for s in skip)}
    wrong = {
        'is missing in it': [name for name in own if name in taken - saved.keys()],
        'is not in the model': [name for name in saved if name in taken - own.keys()],
        'has another shape': [
            f'{name} {tuple(saved[name].shape)} for {tuple(own[name].shape)}'
            for name in own
            if name in taken & saved.keys() and saved[name].shape != own[name].shape
        ],
    }
    reasons = [f'{listed(found)} {what}' for what, found in wrong.items() if found]
    if reasons:
        raise ConfigError(
            f'{setting} does not fit the model: {"; ".join(reasons)}: choose its model, or name '
            'what is not to be copied in configs.pretrained.skip'
        )
    with torch.no_grad():
        for name in own:
            if name in taken:
                own[name].copy_(saved[name])


def listed(names: Sequence[str]) -> str:
    """At most NAMED names, and how many more there are."""
    more = f' and {len(names) - NAMED} more' if len(names) > NAMED else ''
    return ', '.join(names[:NAMED]) + more


def read_weights(path: Path, setting: str) -> Mapping[str, Tensor]:
    """The tensors of a file by name. Raises ConfigError. See ``load_pretrained``."""
    try:
        content: Any = torch.load(path, map_location='cpu', weights_only=True)
    except FileNotFoundError as error:
        raise ConfigError(f'{setting}: there is no such file') from error
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = ' '.join(str(error).split())
        raise ConfigError(f'{setting} cannot be read as weights: {reason:.200}') from error
    if isinstance(content, Mapping):
        within = content.get('state_dict')
        content = evaluated_weights(content) or (within if isinstance(within, Mapping) else content)
    is_state = isinstance(content, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    )
    if not is_state or not content:
        raise ConfigError(f'{setting} holds no state of a model: names with tensors')
    return content
