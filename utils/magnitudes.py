"""Histograms of magnitudes, for TensorBoard: of gradients, selected elements and residuals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgc import Composition
from dgc.buckets import Bucket
from dgc.parameter_server import WorkerOptimizer
from dgc.sparse import Sparse
from utils.build import Parts

if TYPE_CHECKING:
    from utils.log import Log

BINS = 64


class Magnitudes:
    """Draws a histogram of log10 of the magnitudes on rank 0, every so many steps.

    gradient: of the last step, before anything was added to it. selected: what the compressor chose
    of residual and gradient; all elements where a bucket is sent uncompressed. residual: what is
    left for later steps. Zeros are left out, since they have no logarithm.

    Args:
        parts: What this rank trains with.
        log: Receives the histograms.
        period: Optimizer steps between two of them; None for none at all.
        first: The number of the next step.
    """

    def __init__(self, parts: Parts, log: Log, period: int | None, first: int) -> None:
        self._parts, self._log = parts, log
        is_first = parts.engine.rank == 0 and not isinstance(parts.optimizer, WorkerOptimizer)
        self._period = period if is_first else None
        self._selected: list[Tensor] = []
        self.before_step(first)
        if self._period is not None and not isinstance(parts.optimizer, WorkerOptimizer):
            parts.optimizer.reducer.watchers['magnitudes'] = self._note

    def _is_due(self, step: int) -> bool:
        return self._period is not None and step % self._period == 0

    def before_step(self, step: int) -> None:
        """Keep the messages of the next step, ``step``, if it is due. Called before its backward
        pass, since buckets are processed from there on."""
        self._notes = self._is_due(step)

    def before_exchange(self, step: int) -> None:
        """Draw the gradients of optimizer step ``step``, counted from 0."""
        if self._is_due(step):
            parameters = (
                p for group in self._parts.optimizer.param_groups for p in group['params']
            )
            self._draw('gradient', [p.grad for p in parameters if p.grad is not None], step)

    def after_exchange(self, step: int) -> None:
        """Draw what was selected in that step, and the residual after it."""
        if self._is_due(step):
            composition = self._parts.optimizer.composition
            assert isinstance(composition, Composition)  # not of a parameter server
            name = composition.memory.unsent
            buffers = [bucket.buffers for bucket in self._parts.optimizer.buckets]
            self._draw('selected', self._selected, step)
            self._draw('residual', [each[name] for each in buffers if name in each], step)
            self._selected = []
        self.before_step(step + 1)

    def _note(self, bucket: Bucket, selected: Sparse) -> None:
        """Keep a copy of a message. Called on the engine's thread."""
        if self._notes:
            self._selected.append(selected.values.detach().clone())

    def _draw(self, name: str, tensors: list[Tensor], step: int) -> None:
        if tensors:
            logarithms = log_magnitudes(
                torch.cat([each.detach().flatten().float() for each in tensors])
            )
            if len(logarithms):
                self._log.histogram(f'log10 magnitude/{name}', logarithms, step)


def log_magnitudes(values: Tensor) -> Tensor:
    """log10 of the magnitudes of the finite elements that are not zero."""
    magnitudes = values.abs()
    return magnitudes[(magnitudes > 0) & magnitudes.isfinite()].log10()
