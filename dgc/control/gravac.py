"""GraVAC (Tyagi and Swany, 2023, arXiv 2305.12201): a density that falls while little is lost."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.control.base import Control, controlled, values
from dgc.engines.base import Engine
from dgc.sparse import Sparse
from dgc.volume import Volume


class GraVAC(Control):
    """Begins with a larger density than the scheduled one, and lowers it, by a step at a time,
    where messages keep enough of what they compress.

    The compression gain of a window is Σ‖sent‖² / Σ‖residual + gradient‖², over its steps, all
    buckets and all ranks. At or above ``gain``, all densities are divided by ``step``, down to the
    scheduled ones; below it, they are multiplied by it, up to those of the beginning.

    Args:
        largest: The first density as a multiple of the scheduled one.
        gain: The compression gain that is wanted.
        step: By which densities change, above 1.
        window: Optimizer steps between two decisions.

    Raises:
        ValueError: For settings out of range.
    """

    def __init__(
        self, largest: float = 100.0, gain: float = 0.2, step: float = 2.0, window: int = 20
    ) -> None:
        if largest < 1 or step <= 1 or window < 1:
            raise ValueError(
                'largest and window must be at least 1, and step above 1, got '
                f'{largest}, {window} and {step}'
            )
        if not 0 < gain < 1:
            raise ValueError(f'gain must be above 0 and below 1, got {gain}')
        self.largest, self.gain, self.step, self.window = largest, gain, step, window

    @property
    def initial(self) -> float:  # type: ignore[override]
        """``largest``."""
        return self.largest

    def observe(self, bucket: Bucket, corrected: Tensor, selected: Sparse) -> None:
        """Add up the squares of what is sent, and of what is compressed."""
        held = values(bucket)
        held['steps'] = held.get('steps', 0) + 1
        for name, tensor in (('sent', selected.values), ('all', corrected)):
            norm = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
            held[name] = held.get(name, 0.0) + norm**2

    def decide(self, buckets: Sequence[Bucket], engine: Engine, volume: Volume) -> None:
        """Choose one factor for all buckets, at the end of a window."""
        chosen = [values(bucket) for bucket in controlled(buckets)]
        noted = [held for held in chosen if held.get('steps', 0) >= self.window]
        if not noted:
            return
        sums = [sum(held[name] for held in noted) for name in ('sent', 'all')]
        ours = torch.tensor(sums, dtype=torch.float32, device=buckets[0].device)
        sent, everything = engine.all_reduce(ours).tolist()
        factor = noted[0].get('factor', self.initial)
        if everything:
            factor = factor / self.step if sent >= self.gain * everything else factor * self.step
        for held in chosen:
            held.update(factor=min(max(factor, 1.0), self.largest))
        for held in noted:
            held.update(steps=0, sent=0.0, all=0.0)
