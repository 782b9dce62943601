"""The learning rate over time: a warm-up to the scaled rate, then a scheduler of torch's."""

from __future__ import annotations

import warnings

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def warmup_factor(epoch: float, warmup_epochs: float, workers: int) -> float:
    """Share of the scaled rate at a fractional ``epoch``: from ``1 / workers`` linearly to 1.

    The rate grows with the number of workers, and starting at the grown rate costs accuracy
    (Goyal et al., arXiv 1706.02677, section 2.2).
    """
    if epoch >= warmup_epochs:
        return 1.0
    return (epoch * (workers - 1) / warmup_epochs + 1) / workers


class LearningRate:
    """Sets the rate of each step of ``optimizer``.

    scheduler: steps once an epoch, or once a step, from the end of the warm-up on; None to hold.
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
        self._next = 0

    def before_step(self, step: int) -> None:
        """Set the rate of optimizer step ``step``, counted from 0.

        Where others make steps too, some may have passed since: the rate follows through them, and
        stays where it is for one that has been set before.
        """
        for each in range(self._next, step + 1):
            self._set(each)
        self._next = max(self._next, step + 1)

    def _set(self, step: int) -> None:
        if step <= self.warmup_steps:
            factor = warmup_factor(step, self.warmup_steps, self.workers)
            for group, full in zip(self.optimizer.param_groups, self.full, strict=True):
                group['lr'] = full * factor
        elif self.scheduler is not None and (step - self.warmup_steps) % self.period == 0:
            with warnings.catch_warnings():  # torch expects the optimizer's step before this one
                warnings.filterwarnings('ignore', 'Detected call of `lr_scheduler.step')
                self.scheduler.step()

    @property
    def current(self) -> float:
        """The rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]['lr'])

    def resume(self, step: int) -> None:
        """Be where ``step`` steps from the beginning lead, by the settings of now.

        The rate is a function of the step alone, so nothing is saved: what was saved would bring
        back the rate of another number of workers, and the end of a shorter schedule.
        """
        self.before_step(step - 1)
