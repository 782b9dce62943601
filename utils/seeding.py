"""The random generators of Python, NumPy and torch: seeded, saved and restored together."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed the random generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of the random generators of Python, NumPy and torch, in tensors and numbers."""
    version, numbers, normal = random.getstate()
    legacy: Any = np.random.get_state()
    kind, keys, *rest = legacy
    state: dict[str, Any] = {
        'python': [version, torch.tensor(numbers), normal],
        'numpy': [kind, torch.from_numpy(keys.astype(np.int64)), *rest],
        'torch': torch.get_rng_state(),
    }
    if device.type == 'cuda':
        state['cuda'] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore what ``random_state`` returned; on a GPU only where it was saved on one."""
    version, numbers, normal = state['python']
    random.setstate((version, tuple(numbers.tolist()), normal))
    kind, keys, *rest = state['numpy']
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state['torch'])
    if device.type == 'cuda' and 'cuda' in state:
        torch.cuda.set_rng_state(state['cuda'], device)
