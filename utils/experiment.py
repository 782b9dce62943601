"""What a distribution is handed: an experiment, and the loop that trains it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from utils.build import Evaluated, Parts
from utils.config import Config
from utils.log import Log
from utils.naming import run_name


@dataclass(frozen=True)
class Experiment:
    """The command line, the configuration, and train.py's loop.

    train_epoch: one pass over a worker's training data; returns what was measured on the way.
    evaluate: every meter on every split but the training one.
    """

    arguments: Namespace
    configs: Config
    device: torch.device
    train_epoch: Callable[[Parts, Config, int, Log], dict[str, float]]
    evaluate: Callable[[Evaluated, Config], dict[str, float]]

    def folder(self, workers: int) -> Path:
        """Where a run of so many workers leaves what it leaves."""
        name = run_name(self.arguments.configs, self.arguments.suffix, workers)
        return Path(self.arguments.runs) / name

    @property
    def resumes(self) -> bool:
        """Whether a checkpoint is to be gone on from."""
        return self.arguments.resume is not None

    def source(self, folder: Path) -> Path:
        """The run that --resume names: by default this one."""
        return Path(self.arguments.resume or folder)

    def goes_on(self, folder: Path) -> bool:
        """Whether --resume names the run that would be made, so that it is the same run."""
        source = self.source(folder).resolve()
        return self.resumes and folder.resolve() in (source, source.parent)  # of its checkpoints
