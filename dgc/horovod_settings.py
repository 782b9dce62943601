"""The settings of Horovod's ``DistributedOptimizer``: what each is here, or why it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dgc.checks import shortened


class Setting(NamedTuple):
    """A setting that Horovod has and this package has not.

    Attributes:
        fits: Whether a value asks for what is done here anyway.
        reason: Why others are refused, and what to use here.
    """

    fits: Callable[[Any], bool]
    reason: str


def never(_: Any) -> bool:
    """Return False: no value fits."""
    return False


def is_average(op: Any) -> bool:
    """Return whether ``op`` is ``hvd.Average``."""
    return bool(op == 0)


def is_global(process_set: Any) -> bool:
    """Return whether ``process_set`` has all ranks."""
    return getattr(process_set, 'process_set_id', None) == 0


def is_boolean(value: Any) -> bool:
    """Return whether ``value`` is a bool."""
    return isinstance(value, bool)


BUCKETS = 'a planner divides the parameters into buckets: give one to the composition (BySize())'

# Horovod 0.28.1. backward_passes_per_step is batches_per_step.
SETTINGS = {
    'compression': Setting(
        never,
        'the composition compresses: write composition=dgc.dense() for none, or '
        'dgc.deep_gradient_compression(0.001, fp16_values=True)',
    ),
    'gradient_predivide_factor': Setting(
        lambda factor: bool(factor == 1),
        'the sum over the ranks is in float32 and divided once: leave it out',
    ),
    'groups': Setting(lambda groups: groups is None, BUCKETS),
    'num_groups': Setting(lambda number: bool(number == 0), BUCKETS),
    'op': Setting(
        is_average,
        'the result is the mean over the ranks: for hvd.Sum multiply the learning rate by the '
        'number of ranks; hvd.Adasum is not implemented',
    ),
    'process_set': Setting(
        is_global,
        'the engine says which ranks take part: write engine=TorchEngine(group=…), imported from '
        'dgc.engines, with a process group of torch.distributed',
    ),
    'sparse_as_dense': Setting(is_boolean, 'sparse gradients are always averaged as dense ones'),
}


def check_settings(given: Mapping[str, Any]) -> None:
    """Accept the settings of Horovod that ask for what is done here anyway.

    Raises:
        ValueError: For another value.
        TypeError: For a name that Horovod does not have either.
    """
    for name, value in given.items():
        if name not in SETTINGS:
            raise TypeError(
                f'DistributedOptimizer has no setting {name!r}: see help(dgc.DistributedOptimizer)'
            )
        if not SETTINGS[name].fits(value):
            raise ValueError(
                f'{name}={shortened(value)} is not supported, since {SETTINGS[name].reason}'
            )
