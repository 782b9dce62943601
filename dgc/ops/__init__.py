"""The few fused kernels, each beside its plain reference.

reference   plain PyTorch, on any device
native      C++, on the CPU; compiled by the set-up (``python -m dgc.ops.build``)
cuda        Triton, on NVIDIA's GPUs
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from dgc.ops import reference
from dgc.ops.contract import FUSED_TYPES, Found, Kernels, Update

__all__ = ['Found', 'Kernels', 'Update', 'is_fused', 'is_native', 'is_sole', 'kernels', 'unfused']

_unfused = ContextVar('unfused', default=False)
log = logging.getLogger('dgc')


def kernels(device: torch.device) -> Kernels:
    """The fastest set of kernels there is for a device."""
    return reference if _unfused.get() else _kernels(device.type)


@contextmanager
def unfused() -> Iterator[None]:
    """Inside, this thread has the reference alone: to compare with."""
    token = _unfused.set(True)
    try:
        yield
    finally:
        _unfused.reset(token)


def is_fused(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there is more than the reference for gradients of this type, on this device."""
    return dtype in FUSED_TYPES and kernels(device) is not reference


def is_native(device: torch.device) -> bool:
    """Whether the C++ library serves a device."""
    return device.type == 'cpu' and kernels(device) is not reference


def is_sole(tensor: Tensor) -> bool:
    """Whether nobody else holds the memory of ``tensor``, which may then be written to. Only the
    C++ library can tell; without it, False."""
    return _kernels('cpu') is not reference and torch.ops.dgc.holders(tensor) == 1


@cache
def _kernels(device_type: str) -> Kernels:
    """Looked for once; where there is only the reference, that is said once."""
    if device_type == 'cpu':
        from dgc.ops import native

        if native.load():
            return native
        log.info(
            'dgc: compressing in plain PyTorch, several times slower: '
            '`python -m dgc.ops.build` compiles the fused kernels'
        )
    elif device_type == 'cuda':
        if importlib.util.find_spec('triton') is not None:
            from dgc.ops import cuda

            return cuda
        log.info('dgc: compressing in plain PyTorch: install triton for the fused kernels')
    return reference
