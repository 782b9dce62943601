"""Log lines that peers can cause, so many in a minute and no more: a peer must not fill a disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

LINES = 10  # of one kind, in a period
PERIOD = 60.0  # seconds


class LimitedLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that drops what exceeds LINES of one kind in PERIOD, and says how many it dropped.

    Lines are of one kind where their text is the same before arguments are filled in.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})
        self._begun: dict[object, float] = {}  # when the period of a kind began
        self._count: dict[object, int] = {}

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, unless there were LINES of its kind."""
        now = time.monotonic()
        if now - self._begun.setdefault(msg, now) > PERIOD:
            self._report(level, msg)
            self._begun[msg], self._count[msg] = now, 0
        count = self._count.get(msg, 0) + 1
        self._count[msg] = count
        if count <= LINES:
            super().log(level, msg, *args, **kwargs)
        if count == LINES:
            super().log(level, 'further lines of this kind are counted, not logged')

    def counts(self) -> Mapping[object, int]:
        """Lines of each kind in its current period, dropped ones included."""
        return self._count

    def _report(self, level: int, msg: object) -> None:
        dropped = self._count.get(msg, 0) - LINES
        if dropped > 0:
            super().log(level, '%d further lines of the kind %r', dropped, msg)
