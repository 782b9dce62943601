"""What a training mode is given: the experiment, and the loop that trains it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dgc import NonFiniteGradientError
from dgc.engines import Patience
from utils.build import Evaluated
from utils.checkpoint import CheckpointError
from utils.cli import AUTO
from utils.config import Config
from utils.naming import is_same_stack, run_name


@dataclass(frozen=True)
class Experiment:
    """The command line, the configuration, and train.py's loop.

    Attributes:
        arguments: The parsed command line.
        configs: The resolved configuration.
        device: Where this process computes.
        train_epoch: Makes one pass over a worker's training data and returns its measurements;
            called with Parts, Config, epoch, Log and, where there are any, EpochHooks.
        evaluate: Returns every meter on every split except the training split.
        overrides: The settings of the command line, by name.
    """

    arguments: Namespace
    configs: Config
    device: torch.device
    train_epoch: Callable[..., dict[str, float]]
    evaluate: Callable[[Evaluated, Config], dict[str, float]]
    overrides: dict[str, str] = field(default_factory=dict)

    def folder(self, workers: int) -> Path:
        """The folder of a new run of this experiment with ``workers`` workers."""
        arguments = self.arguments
        name = arguments.name or run_name(
            arguments.configs, arguments.suffix, workers, self.overrides
        )
        return Path(arguments.runs) / name

    def earlier(self, workers: int) -> Path:
        """The folder of the run that ``--resume`` or ``--evaluate`` continues or reads.

        Settings may change when a run is resumed, and they are part of a run's name. So it is RUN,
        if that has the same config files and number of workers. Without RUN it is the folder of a
        new run, or else the only run of these config files that has checkpoints.

        Raises:
            CheckpointError: If there are several.
        """
        folder, arguments = self.folder(workers), self.arguments
        if arguments.name or self.is_auto:
            return folder
        if arguments.resume:
            run = Path(arguments.resume)
            candidates = [run.parent if run.name == 'checkpoints' else run]
        elif has_checkpoints(folder) or not folder.parent.is_dir():
            return folder
        else:
            candidates = [each for each in sorted(folder.parent.iterdir()) if has_checkpoints(each)]
        stack = arguments.configs, arguments.suffix, workers
        runs = [
            each
            for each in candidates
            if is_same_stack(each.name, *stack) and each.parent.resolve() == folder.parent.resolve()
        ]
        if len(runs) > 1:
            raise CheckpointError(
                'several runs of these config files have checkpoints; name one, with --resume RUN: '
                f'{", ".join(map(str, runs))}'
            )
        return runs[0] if runs else folder

    @property
    def patience(self) -> Patience:
        """How long a call of the engine waits for other ranks. Raises EngineError."""
        engine = self.configs.engine
        return Patience(engine.warning_seconds, engine.abort_seconds)

    @property
    def resumes(self) -> bool:
        """Whether training continues from a checkpoint, if there is one."""
        return self.arguments.resume is not None

    @property
    def is_auto(self) -> bool:
        """Whether training begins in the run's folder where there is no checkpoint."""
        return self.arguments.resume == AUTO

    def source(self, folder: Path) -> Path:
        """The run that ``--resume`` names; without a name, this run's ``folder``."""
        return folder if self.is_auto else Path(self.arguments.resume or folder)

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


def has_checkpoints(run: Path) -> bool:
    """Whether a run folder holds a checkpoint."""
    return any((run / 'checkpoints').glob('*.pth'))
