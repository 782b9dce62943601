"""What a restarted server goes on from: two generations of checkpoints, and journals after them.

    checkpoints/server.u0000001200.pth        the server's state after 1,200 updates
    checkpoints/server.u0000001200.journal    the updates after it, until the next checkpoint

Where the newest checkpoint is damaged, the one before it and both journals give the same state.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgc.parameter_server import Entry, Journal
from dgc.parameter_server.journal import JournalError, read
from utils import sealed
from utils.checkpoint import CheckpointError
from utils.sealed import Unusable
from utils.training.disk import Disk

NAME = re.compile(r'server\.u(\d+)\.pth')
FORMER = 'server.pth'  # the only checkpoint of earlier versions, which wrote no journal

log = logging.getLogger(__name__)


def checkpoint(folder: Path, version: int) -> Path:
    """The checkpoint after ``version`` updates."""
    return folder / f'server.u{version:010d}.pth'


def versions(folder: Path) -> list[int]:
    """The updates after which there are checkpoints, in order."""
    found = (NAME.fullmatch(path.name) for path in folder.glob('server.u*.pth'))
    return sorted(int(match[1]) for match in found if match)


def exists(folder: Path) -> bool:
    """Whether a server has saved a checkpoint in ``folder``."""
    return bool(versions(folder)) or (folder / FORMER).is_file()


def newest(folder: Path) -> tuple[dict[str, Any], int | None]:
    """The state in the newest checkpoint that is whole; each later one is named in a warning.

    Returns:
        The state, and the version in the file's name; None for a file of an earlier version of this
        program.

    Raises:
        CheckpointError: If there is none.
    """
    found: list[int | None] = [*reversed(versions(folder))]
    if (folder / FORMER).is_file():
        found.append(None)
    wrong = [f'there is no checkpoint of a server in {folder}']
    for version in found:
        path = folder / FORMER if version is None else checkpoint(folder, version)
        try:
            state = sealed.read(path)
            if version not in (None, state['version']):
                raise Unusable(f'holds update {state["version"]}')
        except Unusable as error:
            wrong.append(f'{path} {error}')
            continue
        for each in wrong[1:]:
            log.warning('%s: going on from %s and the journals', each, path.name)
        return state, version
    raise CheckpointError(f'{"; ".join(wrong[1:] or wrong)}: start without --resume')


def journaled(folder: Path, version: int) -> Iterator[Entry]:
    """The updates after ``version`` in the journals, in order.

    Ends before a record that is cut or damaged, and before a gap. The last record of a process that
    was killed may be cut; its update was not acknowledged.
    """
    after = version
    paths = sorted(folder.glob('server.u*.journal'))
    for path in paths:
        try:
            for entry in read(path):
                if entry.update.version == after + 1:
                    after += 1
                    yield entry
                elif entry.update.version > after:
                    log.warning('%s: updates %d to %d are missing, and later ones are not used',
                                path, after + 1, entry.update.version - 1)  # fmt: skip
                    return
        except JournalError as error:
            is_last = path == paths[-1]
            log.warning('%s: %s: going on after update %d%s', path, error, after,
                        ', the last acknowledged one' if is_last else '')  # fmt: skip
        except OSError as error:
            log.warning('%s cannot be read (%s)', path, error.strerror)


class Generations:
    """Writes checkpoints and journals of a server.

    Args:
        folder: Of checkpoints.
        mode: ``configs.server.journal``.
        disk: Where writing may fail.
        good: The version of the checkpoint that the server was restored from, if it is in
            ``folder``.
    """

    def __init__(self, folder: Path, mode: str, disk: Disk, good: int | None = None) -> None:
        self._folder, self._mode, self._disk = folder, mode, disk
        # Checkpoints to keep, in order; those before the one that was read are taken for whole.
        self._good = [] if good is None else [each for each in versions(folder) if each <= good]
        self._journal: Journal | None = None

    @property
    def journal_bytes(self) -> int:
        """Bytes of the journal since the last checkpoint."""
        return 0 if self._journal is None else self._journal.size

    def save(self, state: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Write a checkpoint, and begin a journal behind it; two checkpoints are kept.

        Raises:
            WriteError: If the checkpoint cannot be written; the journal goes on then.
        """
        version = int(state['version'])
        path = checkpoint(self._folder, version)
        sealed.write(state, manifest, path)
        self._disk.recovered(path)
        self.close()
        self._good = [*(each for each in self._good if each < version), version][-2:]
        with self._disk.tolerated(path.with_suffix('.journal')):
            self._remove_others()
            if self._mode != 'off':
                self._journal = Journal(path.with_suffix('.journal'), self._mode == 'synced')

    def append(self, entry: Entry) -> None:
        """Write an update to the journal. Where that fails there is none until the next checkpoint,
        since it would have a gap."""
        if self._journal is not None:
            journal = self._journal
            self._journal = None
            with self._disk.tolerated(journal.path):
                journal.append(entry)
                self._journal = journal

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _remove_others(self) -> None:
        """Remove checkpoints and journals other than those of the whole generations: older ones,
        damaged ones, and later ones of a course of the run that is given up."""
        for version in versions(self._folder):
            if version not in self._good:
                checkpoint(self._folder, version).unlink(missing_ok=True)
        first, last = (
            checkpoint(self._folder, each).stem for each in (self._good[0], self._good[-1])
        )
        for path in self._folder.glob('server.u*.journal'):
            if not first <= path.stem < last:
                path.unlink(missing_ok=True)
        (self._folder / FORMER).unlink(missing_ok=True)
