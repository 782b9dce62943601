"""Writing that may fail while a server trains on: said once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.files import WriteError, saving

log = logging.getLogger(__name__)


class Disk:
    """Where a server writes. It trains on where that fails, and says so once.

    Attributes:
        is_failing: Whether a write failed since the last checkpoint that was written.
    """

    def __init__(self) -> None:
        self.is_failing = False

    @contextmanager
    def tolerated(self, path: Path) -> Iterator[None]:
        """Go on after the block also where it could not write ``path``."""
        try:
            with saving(path):
                yield
        except WriteError as error:
            if not self.is_failing:
                cause = error.__cause__
                log.warning(
                    '%s cannot be written (%s): training goes on without checkpoints. Make room; '
                    'until then updates are lost if the server ends',
                    path,
                    getattr(cause, 'strerror', None) or cause,
                )
            self.is_failing = True

    def recovered(self, path: Path) -> None:
        """A checkpoint was written in ``path``."""
        if self.is_failing:
            log.warning('%s is written: checkpoints go on', path)
        self.is_failing = False
