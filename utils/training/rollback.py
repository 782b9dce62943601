"""Going back to the last good checkpoint, with a lower learning rate, where steps are skipped."""

from __future__ import annotations

from dgc import Composition, DistributedOptimizer, LocalSteps
from utils.checkpoint import CheckpointError, Position
from utils.config import Config, ConfigError
from utils.search import Saved


class RolledBack(Exception):
    """Steps were skipped, so training goes on from an earlier checkpoint. Raised on all ranks.

    Attributes:
        before: The position before the first of these steps.
    """

    def __init__(self, message: str, before: Position) -> None:
        super().__init__(message)
        self.before = before


class SkippedSteps:
    """Ends training for a rollback where all of the last steps were skipped: ``configs.rollback``.

    Args:
        optimizer: Counts them, alike on all ranks.
        most: Skipped steps in a row.
        first: Where training begins.
    """

    def __init__(
        self, optimizer: DistributedOptimizer | LocalSteps, most: int, first: Position
    ) -> None:
        self._optimizer, self._most = optimizer, most
        self._before = first  # before the first of them

    def __call__(self, position: Position) -> None:
        """Look at the step that has led to ``position``.

        Raises:
            RolledBack: On all ranks at the same step.
        """
        skips = self._optimizer.skips
        if skips == 0:
            self._before = position
        elif skips >= self._most:
            made = f'{position.step} steps of epoch {position.epoch}'
            raise RolledBack(f'skipped steps, {skips} in a row, until {made}', self._before)


class Rollbacks:
    """How often a run has gone back to a checkpoint, and by what its learning rate is lowered.

    Args:
        settings: ``configs.rollback``.

    Attributes:
        done: How often.
    """

    def __init__(self, settings: Config) -> None:
        self.done = 0
        self._settings = settings
        self._factor = 1.0

    def count(self, skipped: RolledBack) -> None:
        """Count one. Raises CheckpointError where there were enough."""
        if self.done == self._settings.times:
            raise CheckpointError(
                f'{skipped}, after {self.done} rollbacks (configs.rollback.times): lower the '
                'learning rate or clip, then continue with --resume'
            )
        self.done += 1

    def factor(self, saved: Saved) -> float:
        """The factor of the learning rate after a rollback to ``saved``: lower than all before."""
        self._factor = min(self._factor, saved.rate_factor) * self._settings.lr_factor
        return self._factor


def check_skips(configs: Config, composition: object) -> None:
    """Raise ConfigError for a rollback after steps that this composition does not skip."""
    is_stopped = isinstance(composition, Composition) and composition.nonfinite != 'skip'
    if configs.rollback.after_skips is not None and is_stopped:
        raise ConfigError(
            f'configs.rollback.after_skips = {configs.rollback.after_skips} has no effect, since '
            'training ends at the first step that is not finite: add '
            '--configs.train.compression.nonfinite skip'
        )
