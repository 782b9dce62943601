"""Name the workers that an elastic one waits for, before it goes on without them.

Each worker has its beat (``dgc.engines.watch``) in its notice. One that waits long reads those of
the others: nothing is sent while nobody waits.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dgc.engines.base import Wait
from dgc.engines.notice import Notice, read
from dgc.engines.watch import MISSED, NAMED, Channel, Patience, Watch

log = logging.getLogger('dgc')

SOONEST = 5.0  # seconds until the first report, where the time-out is the shortest by itself


class GroupCall(NamedTuple):
    """A call of the group that is not complete.

    Attributes:
        number: Counts them.
        what: Its name, and the bucket that it serves.
        since: When it began, by time.monotonic.
        limit: Seconds after which it is given up.
        setting: That the limit is from.
    """

    number: int
    what: str
    since: float
    limit: float
    setting: str


class Beats:
    """The beats of workers, each in the notice of its own.

    Args:
        own: This worker's.

    Attributes:
        host: Not used: a worker's own notice is always there.
        others: Where those of the other members are, as ``host:port``, by rank.
    """

    host = ''

    def __init__(self, own: Notice) -> None:
        self._own = own
        self.others: Mapping[int, str] = {}

    def publish(self, text: str) -> None:
        """Replace this worker's text."""
        self._own.beat = text

    def read(self) -> Mapping[int, str]:
        """Return the texts of the others; of one that is stopped or gone there is none."""
        texts = {}
        for rank, address in self.others.items():
            with contextlib.suppress(OSError):  # it is gone
                if (told := read(address)) is not None:
                    texts[rank] = told.beat
        return texts


class ElasticWatch(Watch):
    """As Watch, for a group whose members change; it ends no wait, since gloo does.

    Every worker that waits reports, since each has a log of its own.

    Args:
        own: This worker's notice.
        call: Returns the call of the group that this worker is in, or None.
        warning_seconds: Of a wait until the first report: or half the time after which the call is
            given up, where that is less.
    """

    def __init__(
        self, own: Notice, call: Callable[[], GroupCall | None], warning_seconds: float
    ) -> None:
        self._call, self._warning = call, warning_seconds
        self._notices = Beats(own)
        self._members: Sequence[str] = ()
        self._reading, self._has_read = 0.0, -1
        channel: Channel = self._notices
        patience = Patience(min(warning_seconds, SOONEST))
        super().__init__(0, 1, patience, self._wait, never, channel)

    def follow(self, rank: int, members: Sequence[str], notices: Sequence[str]) -> None:
        """Watch another group.

        Args:
            rank: Of this worker in it.
            members: Names, by rank.
            notices: As ``host:port``, by rank.
        """
        self._rank, self._size, self._members, self._beats = rank, len(members), members, {}
        self._notices.others = {r: each for r, each in enumerate(notices) if r != rank}

    def waited_for(self) -> str:
        """Return who is waited for in the present call, as far as it has been found out; or ''."""
        call = self._call()
        if call is None or self._has_read != call.number:
            return ''
        return '; and for '.join(self._causes())

    def _wait(self) -> Wait | None:
        call = self._call()
        return call and Wait(call.number, call.what, time.monotonic() - call.since)

    def _read(self, channel: Channel) -> None:
        call, begin = self._call(), time.monotonic()
        super()._read(channel)
        self._reading = time.monotonic() - begin
        self._has_read = -1 if call is None else call.number

    def _first(self) -> float:
        call = self._call()
        return self._warning if call is None else min(self._warning, call.limit / 2)

    def _names(self, ranks: Sequence[int]) -> str:
        members = self._members
        known = [f'{members[rank]} (rank {rank})' for rank in ranks if rank < len(members)]
        more = f' and {len(known) - NAMED} more' if len(known) > NAMED else ''
        return ', '.join(known[:NAMED]) + more

    def _silent(self) -> list[int]:
        # Who is stopped is waited for while beats are read, so that the others' beats are older.
        oldest = time.monotonic() - MISSED * self._period - 2 * self._reading
        others = (rank for rank in range(self._size) if rank != self._rank)
        return [r for r in others if r not in self._beats or self._beats[r][1] < oldest]

    def _limit(self, wait: Wait) -> float:
        return math.inf

    def _report(self, wait: Wait, limit: float) -> bool:
        """Log who is waited for."""
        call = self._call()
        if call is None or call.number != wait.call:
            return False
        if self._has_read != call.number:
            self._read(self._notices)
        log.warning('%s; it is dropped after %g s (%s)', self._sentence(wait), *call[3:])
        return True

    def _sentence(self, wait: Wait) -> str:
        own = self._names([self._rank])
        causes = '; and for '.join(self._causes())
        return f'{own} has waited {wait.seconds:.0f} s in {wait.what} for {causes}'


def never(error: Exception) -> None:
    """End nothing: no wait is too long for this watch."""
