"""What a training mode is given: the experiment, and the loop that trains it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from dgc import NonFiniteGradientError
from dgc.engines import Patience
from utils.build import Evaluated, Parts
from utils.config import Config
from utils.log import Log
from utils.naming import run_name


@dataclass(frozen=True)
class Experiment:
    """The command line, the configuration, and train.py's loop.

    Attributes:
        arguments: The parsed command line.
        configs: The resolved configuration.
        device: Where this process computes.
        train_epoch: Makes one pass over a worker's training data and returns its measurements.
        evaluate: Returns every meter on every split except the training split.
    """

    arguments: Namespace
    configs: Config
    device: torch.device
    train_epoch: Callable[[Parts, Config, int, Log], dict[str, float]]
    evaluate: Callable[[Evaluated, Config], dict[str, float]]

    def folder(self, workers: int) -> Path:
        """The run folder of this experiment with ``workers`` workers."""
        name = run_name(self.arguments.configs, self.arguments.suffix, workers)
        return Path(self.arguments.runs) / name

    @property
    def patience(self) -> Patience:
        """How long a call of the engine waits for other ranks. Raises EngineError."""
        engine = self.configs.engine
        return Patience(engine.warning_seconds, engine.abort_seconds)

    @property
    def resumes(self) -> bool:
        """Whether training continues from a checkpoint."""
        return self.arguments.resume is not None

    def source(self, folder: Path) -> Path:
        """The run that ``--resume`` names; without a name, this run's ``folder``."""
        return Path(self.arguments.resume or folder)

    def continues(self, folder: Path) -> bool:
        """Whether ``--resume`` names this run's own ``folder``, so that its files are appended
        to."""
        source = self.source(folder).resolve()
        return self.resumes and folder.resolve() in (source, source.parent)  # of its checkpoints


def with_remedy(error: NonFiniteGradientError, has_checkpoint: bool) -> NonFiniteGradientError:
    """Return the same error with what to do about it.

    Args:
        error: Of a step that stopped training.
        has_checkpoint: Whether the run has saved an epoch, from which it can continue.
    """
    then = (
        'continue with --resume'
        if has_checkpoint
        else 'start again: no epoch has been saved yet that --resume could continue from'
    )
    return NonFiniteGradientError(
        f'{error}: lower the learning rate or clip, then {then}', error.rank
    )
