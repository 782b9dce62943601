"""How far training is, in samples and in steps: what curves are drawn against."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Made(NamedTuple):
    """What has been made since the beginning of the run.

    Attributes:
        samples: Of all workers.
        steps: Optimizer steps.
    """

    samples: int
    steps: int


class Counting(Protocol):
    """Counts the samples of a run."""

    def made(self, steps: int) -> Made:
        """What has been made after so many steps, the last of which may be the present one."""


class EqualSteps:
    """Every step has as many samples.

    Args:
        samples: Of all workers, in a step.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def made(self, steps: int) -> Made:
        """After any number of steps. See Counting."""
        return Made(steps * self._samples, steps)
