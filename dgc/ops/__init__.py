"""Fused kernels, each bit-identical to a reference in plain PyTorch.

reference   plain PyTorch, on any device
native      C++, on the CPU; compiled at the first use, or by ``python -m dgc.ops.build``
cuda        Triton, on NVIDIA GPUs
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
from dgc.ops.contract import FUSED_TYPES, Found, Kernels, Update, is_aligned

__all__ = [
    'Found',
    'Kernels',
    'Update',
    'is_aligned',
    'is_fused',
    'is_native',
    'is_sole',
    'kernels',
    'unfused',
]

_unfused = ContextVar('unfused', default=False)
log = logging.getLogger('dgc')


def kernels(device: torch.device) -> Kernels:
    """Return the fastest set of kernels that is available for a device."""
    return reference if _unfused.get() else _kernels(device.type)


@contextmanager
def unfused() -> Iterator[None]:
    """Use only the reference inside this context, in this thread. For tests and benchmarks."""
    token = _unfused.set(True)
    try:
        yield
    finally:
        _unfused.reset(token)


def is_fused(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether fused kernels exist for gradients of this type on this device."""
    return dtype in FUSED_TYPES and kernels(device) is not reference


def is_native(device: torch.device) -> bool:
    """Return whether the C++ library is used for tensors on a device."""
    return device.type == 'cpu' and kernels(device) is not reference


def is_sole(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is the only reference to its storage, which may then be
    overwritten.

    Only the C++ library can count references to a storage; without it, the result is False.
    """
    return _kernels('cpu') is not reference and torch.ops.dgc.holders(tensor) == 1


@cache
def _kernels(device_type: str) -> Kernels:
    """Return the kernels for a type of device. One line is logged where there are none."""
    if device_type == 'cpu':
        from dgc.ops import native

        if native.load():
            return native
    elif device_type == 'cuda':
        if importlib.util.find_spec('triton') is not None:
            from dgc.ops import cuda

            return cuda
        log.info('dgc: compressing in plain PyTorch: install triton for the fused kernels')
    return reference
