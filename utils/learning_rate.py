"""The learning rate over time: a warm-up to the scaled rate, then a scheduler of torch."""

from __future__ import annotations

import warnings

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def warmup_factor(epoch: float, warmup_epochs: float, workers: int) -> float:
    """The factor of the scaled rate at a fractional ``epoch``: from ``1 / workers`` linearly to 1.

    The scaled rate is that of one worker times the number of workers; starting at it costs accuracy
    (Goyal et al., arXiv 1706.02677, section 2.2).
    """
    if epoch >= warmup_epochs:
        return 1.0
    return (epoch * (workers - 1) / warmup_epochs + 1) / workers


class LearningRate:
    """Sets the learning rate of each step of ``optimizer``.

    Args:
        optimizer: Its ``param_groups`` hold the scaled rates.
        scheduler: Steps once per epoch or once per step after the warm-up; None for a constant
            rate.
        warmup_epochs: Length of the warm-up.
        steps_per_epoch: Steps in an epoch.
        workers: Number of workers by which the rate was multiplied.
        per_epoch: Whether the scheduler steps once per epoch.

    Attributes:
        factor: By which all rates are multiplied; set before the first step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        warmup_epochs: int,
        steps_per_epoch: int,
        workers: int,
        per_epoch: bool = True,
    ) -> None:
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.warmup_steps = warmup_epochs * steps_per_epoch
        self.workers = workers
        self.period = steps_per_epoch if per_epoch else 1
        self.full = [group['lr'] for group in optimizer.param_groups]
        self.factor = 1.0
        self._scheduled = self.full  # of the last step, without the factor
        self._next = 0

    def before_step(self, step: int) -> None:
        """Set the rate of optimizer step ``step``, counted from 0.

        In asynchronous training steps may be skipped or repeated: the scheduler goes through the
        skipped ones, and a repeated one changes nothing.
        """
        if step < self._next:
            return
        groups = self.optimizer.param_groups
        for group, rate in zip(groups, self._scheduled, strict=True):
            group['lr'] = rate  # which schedulers compute the next one from
        for each in range(self._next, step + 1):
            self._set(each)
        self._next = step + 1
        self._scheduled = [group['lr'] for group in groups]
        for group in groups:
            group['lr'] *= self.factor

    def _set(self, step: int) -> None:
        if step <= self.warmup_steps:
            factor = warmup_factor(step, self.warmup_steps, self.workers)
            for group, full in zip(self.optimizer.param_groups, self.full, strict=True):
                group['lr'] = full * factor
        elif self.scheduler is not None and (step - self.warmup_steps) % self.period == 0:
            with warnings.catch_warnings():  # torch expects optimizer.step() before
                warnings.filterwarnings('ignore', 'Detected call of `lr_scheduler.step')
                self.scheduler.step()

    @property
    def current(self) -> float:
        """The rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]['lr'])

    def resume(self, step: int) -> None:
        """Set the rate after ``step`` steps from the beginning, by the current settings.

        The rate is a function of the step alone and is not saved, since the number of workers or
        the length of the schedule may have changed.
        """
        self.before_step(step - 1)
