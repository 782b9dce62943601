"""The density over time: nearly uncompressed at first, sparse later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dgc.checks import check_number


@dataclass(frozen=True)
class DensitySchedule:
    """The density of each optimizer step: the fraction of a bucket's elements that is sent.

    Deep Gradient Compression, section 3.3: sending only 0.1 % from the first step on harms a model
    that is still changing quickly, so the density falls exponentially during a warm-up: once per
    stage of ``warmup_epochs``, or at each of ``warmup_steps``, which needs no length of an epoch.

    Args:
        density: The density after the warm-up, above 0 and at most 1. ``None`` sends the bucket
            uncompressed. A density of 1 still goes through the compressor, the codec and the
            exchange (all elements of a quantized message, for example).
        warmup_epochs: Stages of the warm-up, each one epoch long unless ``stage_steps`` is given.
        warmup_coeff: ``None`` for ``density ** ((e + 1) / (warmup_epochs + 1))`` in stage ``e``,
            the rule of the published release; a number ``c`` for ``c ** (e + 1)``; or one density
            for each stage. A value of 1 or more means uncompressed.
        stage_steps: Steps in one stage, for runs too short to warm up in epochs.
        warmup_steps: W optimizer steps in place of epochs: the density of step ``s < W`` is
            ``density ** ((s + 1) / (W + 1))``, the rule of the published release with stages of
            one step.

    Raises:
        TypeError: For a setting that is not a number.
        ValueError: For a density outside (0, 1], a warm-up that is incomplete, or settings of its
            stages where it has none.
    """

    density: float | None = None
    warmup_epochs: int = 0
    warmup_coeff: float | Sequence[float] | None = None
    stage_steps: int | None = None
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        ramp = self.warmup_coeff
        given = [] if self.density is None else [self.density]
        if ramp is not None:
            given += ramp if isinstance(ramp, Sequence) else [ramp]
        if not all(0 < density for density in given):
            raise ValueError(f'compress_ratio and warmup_coeff must be above 0, got {given}')
        if self.density is not None and self.density > 1:
            raise ValueError(f'a density is at most 1, got {self.density}; see density_of()')
        if isinstance(ramp, Sequence):
            object.__setattr__(self, 'warmup_coeff', tuple(ramp))  # hashable, equal as a value
        if isinstance(ramp, Sequence) and len(ramp) < self.warmup_epochs:
            raise ValueError(
                f'warmup_coeff has {len(ramp)} ratios for warmup_epochs = {self.warmup_epochs}'
            )
        if self.warmup_epochs < 0:
            raise ValueError(f'warmup_epochs must be at least 0, got {self.warmup_epochs}')
        if self.stage_steps is not None and self.stage_steps < 1:
            raise ValueError(f'stage_steps must be at least 1, got {self.stage_steps}')
        self._check_steps()
        if not self.warmup_epochs:
            self._check_stages()

    def _check_stages(self) -> None:
        """Refuse settings of stages where there are none."""
        of_stages = {'warmup_coeff': self.warmup_coeff, 'warmup_stage_steps': self.stage_steps}
        remedy = 'and warmup_steps to 0, ' if self.warmup_steps else ''
        for name, value in of_stages.items():
            if value is not None:
                raise ValueError(
                    f'{name}={value} is for the stages of a warm-up, and warmup_epochs is 0: set '
                    f'it to the number of stages, {remedy}or {name} to None'
                )

    def _check_steps(self) -> None:
        """Refuse a number of steps that is none, and two warm-ups."""
        if self.warmup_steps < 0 or not float(self.warmup_steps).is_integer():
            raise ValueError(
                f'warmup_steps must be a whole number, 0 or more, got {self.warmup_steps}'
            )
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError(
                f'warmup_steps={self.warmup_steps} and warmup_epochs={self.warmup_epochs} are two '
                'warm-ups: set one of them to 0'
            )

    def _check_types(self) -> None:
        """Refuse strings and other values that are no numbers."""
        check_number('warmup_epochs', self.warmup_epochs)
        check_number('warmup_steps', self.warmup_steps)
        if self.density is not None:
            check_number('density', self.density)
        if self.stage_steps is not None:
            check_number('warmup_stage_steps', self.stage_steps)
        ramp = self.warmup_coeff
        if isinstance(ramp, Sequence) and not isinstance(ramp, str):
            for each in ramp:
                check_number('warmup_coeff', each)
        elif ramp is not None:
            check_number('warmup_coeff', ramp)

    def at(self, step: int, steps_per_epoch: int) -> float | None:
        """Return the density of optimizer step ``step``, counted from 0; None for uncompressed."""
        stage = step if self.warmup_steps else int(step // (self.stage_steps or steps_per_epoch))
        stages = self.warmup_steps or self.warmup_epochs
        if stage >= stages:
            return self.density
        if isinstance(self.warmup_coeff, Sequence):
            return compressed_below_one(self.warmup_coeff[stage])
        if self.density is None:
            return None
        base = self.warmup_coeff or self.density ** (1 / (stages + 1))
        return compressed_below_one(max(base ** (stage + 1), self.density))

    @property
    def is_uncompressed(self) -> bool:
        """Whether no step is ever compressed."""
        ramp = self.warmup_coeff if isinstance(self.warmup_coeff, Sequence) else ()
        stages = ramp[: math.ceil(self.warmup_epochs)]
        return self.density is None and all(stage >= 1 for stage in stages)

    def towards(self, density: float | None) -> DensitySchedule:
        """Return the same warm-up with another final density.

        Stages given as a list are meant for the present density; none goes below the new one.
        """
        if density == self.density:
            return self
        ramp = self.warmup_coeff
        if isinstance(ramp, Sequence):
            ramp = tuple(max(stage, 1.0 if density is None else density) for stage in ramp)
        return replace(self, density=density, warmup_coeff=ramp)


def compressed_below_one(density: float) -> float | None:
    """Return ``density``, or None (uncompressed) where it is 1 or more."""
    return None if density >= 1 else density  # a NaN is passed on, and refused


def density_of(compress_ratio: float) -> float | None:
    """Return the density that the published setting ``compress_ratio`` means.

    Below 1 it is the density itself; above 1 its inverse (1000 for 0.1 %); 1 means uncompressed.
    """
    return compressed_below_one(1 / compress_ratio if compress_ratio > 1 else compress_ratio)


def lasting_beta2(density: float) -> float:
    """Return a decay rate with which Adam's second moment outlasts the steps between two arrivals.

    At a density ρ an element arrives about every 1/ρ steps; the second moment is an average over
    about 1/(1 - beta2) steps, of which there are at least 10,000 here (measured:
    docs/optimizers.md).
    """
    return max(0.9999, 1 - density)
