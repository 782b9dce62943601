"""The ratio over time: dense at first, sparse later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RatioSchedule:
    """Share of the elements kept at each step, with a warm-up that starts nearly dense.

    Deep Gradient Compression, section 3.3: sending everything but 0.1 % back from the first step
    on hurts a model that is still changing quickly, so the ratio falls exponentially first.

    ratio: the ratio after the warm-up, ``0 < ratio``; 1 and above is dense.
    warmup_epochs: stages of the warm-up, each an epoch long unless ``stage_steps`` is given.
    warmup_coeff: ``None`` for ``ratio ** ((e + 1) / (warmup_epochs + 1))`` in stage ``e``, which
        is what the published release computes; a number ``c`` for ``c ** (e + 1)``; or one ratio
        for each stage.
    stage_steps: steps in one stage, for runs too short to warm up in epochs.
    """

    ratio: float
    warmup_epochs: int = 0
    warmup_coeff: float | Sequence[float] | None = None
    stage_steps: int | None = None

    def __post_init__(self) -> None:
        ramp = self.warmup_coeff
        given = [self.ratio]
        if ramp is not None:
            given += ramp if isinstance(ramp, Sequence) else [ramp]
        if not all(0 < ratio for ratio in given):
            raise ValueError(f'compress_ratio and warmup_coeff must be above 0, got {given}')
        if isinstance(ramp, Sequence) and len(ramp) < self.warmup_epochs:
            raise ValueError(
                f'warmup_coeff has {len(ramp)} ratios for warmup_epochs = {self.warmup_epochs}'
            )
        if self.warmup_epochs < 0:
            raise ValueError(f'warmup_epochs must be at least 0, got {self.warmup_epochs}')
        if self.stage_steps is not None and self.stage_steps < 1:
            raise ValueError(f'stage_steps must be at least 1, got {self.stage_steps}')

    def at(self, step: int, steps_per_epoch: int) -> float:
        """The ratio of optimizer step ``step``, counted from 0."""
        stage = step // (self.stage_steps or steps_per_epoch)
        if stage >= self.warmup_epochs:
            return self.ratio
        if isinstance(self.warmup_coeff, Sequence):
            return self.warmup_coeff[stage]
        base = self.warmup_coeff or self.ratio ** (1 / (self.warmup_epochs + 1))
        return max(base ** (stage + 1), self.ratio)

    def towards(self, ratio: float) -> RatioSchedule:
        """The same warm-up to another ratio; stages given as a list are meant for this one, so
        none goes below the other."""
        if ratio == self.ratio:
            return self
        ramp = self.warmup_coeff
        if isinstance(ramp, Sequence):
            ramp = [max(stage, ratio) for stage in ramp]
        return replace(self, ratio=ratio, warmup_coeff=ramp)
