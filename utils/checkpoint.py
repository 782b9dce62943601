"""Checkpoints: one file per rank and epoch, written completely or not at all.

    checkpoints/e0004.r1of2.pth     everything that rank 1 of 2 needs after epoch 4
    checkpoints/best.txt            the epoch whose metric was best

Every rank writes the residuals of its memory and, so that machines need not share a file system,
its own copy of everything else.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgc.handshake import gather_text
from dgc.saved_state import join_ranks, merge_states
from utils.build import Evaluated
from utils.files import replacing
from utils.naming import AT

NAME = re.compile(r'e(\d+)\.r(\d+)of(\d+)\.pth')
KEEP_EPOCHS = 3  # besides the best one

log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """There is no checkpoint from which all ranks can continue."""


def plain(value: Any) -> Any:
    """``value`` in types that ``torch.load(weights_only=True)`` reads: no NumPy scalars."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


def file_name(epoch: int, rank: int, size: int) -> str:
    """The name of a checkpoint, which ``NAME`` matches."""
    return f'e{epoch:04d}.r{rank}of{size}.pth'


def save_whole(state: dict[str, Any], target: Path) -> None:
    """Write ``state`` to ``target``, atomically: a process killed meanwhile leaves the old file.

    Raises WriteError if it cannot be written.
    """
    with replacing(target, target.with_suffix('.partial')) as file:
        torch.save(plain(state), file)


def load_whole(path: Path, remedy: str) -> dict[str, Any]:
    """Read what was saved in ``path``. Raises CheckpointError, with a remedy, if it is damaged."""
    try:
        return torch.load(path, map_location='cpu', weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f'{path} is damaged: {remedy}') from error


class Checkpoints:
    """The checkpoints of one run in the file system of one rank."""

    def __init__(self, folder: Path, rank: int = 0, size: int = 1) -> None:
        self.folder = folder
        self.rank = rank
        self.size = size

    def save(self, epoch: int, state: dict[str, Any]) -> None:
        """Write this rank's file of ``epoch``, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save_whole(state, self.folder / file_name(epoch, self.rank, self.size))

    def finish(self, epoch: int, best: bool) -> None:
        """Record whether ``epoch``, saved by all ranks, is the best, and remove older epochs."""
        if best:  # on every rank, since the others may not see the disk of rank 0
            partial = self.folder / f'best.r{self.rank}.partial'
            with replacing(self.folder / 'best.txt', partial) as file:
                file.write(f'{epoch}\n'.encode())
        keep = set(range(epoch - KEEP_EPOCHS + 1, epoch + 1)) | {epoch if best else self.best()}
        for path, saved_epoch, rank, size in self._files():
            if (rank, size) == (self.rank, self.size) and saved_epoch not in keep:
                path.unlink()

    def best(self) -> int | None:
        """The epoch with the best metric, if one was recorded and can be read."""
        path = self.folder / 'best.txt'
        text = path.read_text(errors='replace').strip() if path.is_file() else None
        if text is None or (text.isascii() and text.isdigit()):
            return None if text is None else int(text)
        log.warning('%s names no epoch (%.20r): it is not used', path, text)
        return None

    def epochs(self, model_only: bool = False) -> dict[int, int]:
        """The epochs from which this rank can continue, and the number of ranks that saved each.

        With the same number of ranks its own file is enough. Otherwise the files of all ranks are
        needed, or, for the model alone, that of rank 0.
        """
        found: dict[tuple[int, int], set[int]] = {}
        for _, epoch, rank, size in self._files():
            found.setdefault((epoch, size), set()).add(rank)
        usable = {}
        for (epoch, size), ranks in sorted(found.items()):
            own = size == self.size and self.rank in ranks
            if own or len(ranks) == size or (model_only and 0 in ranks):
                usable[epoch] = size
        return usable

    def load_model(self, epoch: int, size: int) -> dict[str, Any]:
        """Read a file with the model that ``size`` ranks saved, which is the same in all files."""
        own = self.folder / file_name(epoch, self.rank, size)
        return self._read(epoch, self.rank if own.is_file() else 0, size)

    def load(self, epoch: int, size: int) -> dict[str, Any]:
        """Read this rank's state: its own file, or its share of what ``size`` ranks saved."""
        if size == self.size:
            return self._read(epoch, self.rank, size)
        states = [self._read(epoch, rank, size) for rank in range(size)]
        optimizers = [state['optimizer'] for state in states]
        if 'ranks' in optimizers[0]:
            return {**states[0], 'optimizer': join_ranks(optimizers)}
        merged = merge_states(optimizers, self.rank, self.size)
        return {**states[0], 'optimizer': {**optimizers[0], **merged}}

    def _read(self, epoch: int, rank: int, size: int) -> dict[str, Any]:
        path = self.folder / file_name(epoch, rank, size)
        return load_whole(path, 'remove it to continue from an earlier epoch')

    def _files(self) -> Iterable[tuple[Path, int, int, int]]:
        for path in sorted(self.folder.glob('e*.pth')):
            if match := NAME.fullmatch(path.name):
                yield path, int(match[1]), int(match[2]), int(match[3])


def restore(parts: Evaluated, run: Path, evaluate: bool = False) -> tuple[int, float | None]:
    """Load the last epoch from which all ranks can continue. A collective.

    Args:
        parts: What is loaded into.
        run: A run folder, or its folder of checkpoints.
        evaluate: Whether to load only the model, of the best epoch.

    Returns:
        The epoch to train next, and the best metric so far.

    Raises:
        CheckpointError: If there is no such epoch, or it does not fit the configuration.
    """
    engine = parts.engine
    folder = run if run.name == 'checkpoints' else run / 'checkpoints'
    checkpoints = Checkpoints(folder, engine.rank, engine.size)
    usable = sorted(checkpoints.epochs(model_only=evaluate).items())
    listed = json.dumps({'usable': usable, 'best': checkpoints.best()})
    of_ranks = [json.loads(text) for text in gather_text(engine, listed, parts.device, limit=65536)]
    common = dict(set.intersection(*({(e, s) for e, s in one['usable']} for one in of_ranks)))
    if not common:
        raise CheckpointError(
            f'there is no checkpoint in {run} that all ranks can read; --resume RUN names a '
            f'run{siblings(run)}'
        )
    epoch, best = max(common), of_ranks[0]['best']
    if evaluate:
        epoch = best if best in common else epoch
        state = checkpoints.load_model(epoch, common[epoch])
    else:
        state = checkpoints.load(epoch, common[epoch])
    try:
        if evaluate:
            parts.model.load_state_dict(state['model'])
        else:
            parts.load_state_dict(state, state['epoch'] + 1)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = textwrap.shorten(str(error), 400, placeholder=' …')
        raise CheckpointError(f'{run} does not fit this configuration: {reason}') from error
    return state['epoch'] + 1, state['best']


def siblings(run: Path) -> str:
    """Names runs of the same config files with other numbers of workers that have checkpoints."""
    stem, dot, _ = run.name.rpartition('.np')
    if not dot:
        return ''
    stack = stem.partition(AT)[0]
    runs = [
        each
        for each in sorted(run.parent.glob('*'))
        if each.name.startswith((stack + dot, stack + AT)) and each != run
    ]
    usable = [str(each) for each in runs if Checkpoints(each / 'checkpoints').epochs(True)]
    return f', such as {", ".join(usable)}' if usable else ''
