"""A GradScaler that changes its scale in each step, and PyTorch's documented loops with it."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from dgc_helpers import loss
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

import dgc

FEW = {
    'dense': dgc.dense,
    'dgc': lambda **s: dgc.deep_gradient_compression(0.02, **s),
    'gtopk': lambda **s: dgc.ALGORITHMS['gtopk'].make(0.02, **s),
}
WITHOUT = ''  # no overflow
ROOT = Path(__file__).parents[2]


def scaler(scale: float = 1024.0, growth: float = 2.0, **settings) -> GradScaler:
    """One whose scale changes after every step."""
    return GradScaler('cpu', scale, growth, growth_interval=1, **settings)


def backward(given: Tensor, named, overflow: str = WITHOUT) -> None:
    """A backward pass, in which one element of the gradient of ``overflow`` is infinite."""
    if not overflow:
        given.backward()
        return

    def spoil(gradient):
        spoilt = gradient.clone()
        spoilt.view(-1)[-1] = torch.inf
        return spoilt

    hook = dict(named)[overflow].register_hook(spoil)
    given.backward()
    hook.remove()


class Loop:
    """A step of PyTorch's documented loops; without ``optimizer.scaler``, of plain ones."""

    def __init__(self, passes: int = 1, paused: int = 0, limit: float | None = None) -> None:
        self.passes, self.paused, self.limit = passes, paused, limit

    def step(self, optimizer: dgc.DistributedOptimizer, named, rank, step, overflow=WITHOUT):
        """A step of ``passes + paused`` backward passes, clipped to ``limit``."""
        scaler = optimizer.scaler
        optimizer.zero_grad()
        for each in range(self.passes + self.paused):
            value = loss(named, rank, 10 * step + each)
            value = value if scaler is None else scaler.scale(value)
            if each < self.paused:
                with optimizer.no_sync():
                    backward(value, named, overflow)
            else:
                backward(value, named, overflow)
        if self.limit is not None:
            if scaler is None:
                optimizer.synchronize()
            else:
                scaler.unscale_(optimizer)
            clip_grad_norm_([p for _, p in named], self.limit)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


LOOPS = {
    'as written': Loop(),
    'clipped': Loop(limit=1.0),
    'accumulated': Loop(passes=2),
    'accumulated, clipped': Loop(passes=2, limit=1.0),
    'no_sync': Loop(paused=1),
}


def sgd(parameters_) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters_, lr=0.1)


def documented(number: int) -> str:
    """A snippet of docs/mixed-precision.md, for the CPU."""
    page = (ROOT / 'docs/mixed-precision.md').read_text()
    snippet = re.findall(r'```python\n(.*?)```', page, re.DOTALL)[number]
    return snippet.replace("'cuda'", "'cpu'")
