"""The members of a quorum meet at the store of the first one, before they connect to each other.

gloo waits for a member that never comes until its time-out, and cannot be interrupted. A member
does not come where it has died since it asked, or where it follows another quorum: its question
ended without an answer just before the quorum was made, or it has seen that somebody else does not
come. Each worker has a notice of which of its questions it has given up. So who waits looks there,
and asks anew at once.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dgc.engines import notice
from dgc.engines.base import LostError

REACH = timedelta(seconds=2)  # to connect to a machine
STORE = timedelta(seconds=5)  # for an answer of the store of the first member
FIRST_LOOK, LOOK = 0.1, 0.3  # seconds until those who have not come are looked at
HERE, LEFT = 'here', 'left'


class Quorum(NamedTuple):
    """Who takes part, as decided by the lighthouse.

    Attributes:
        members: The workers' ids, in the order of their ranks.
        stores: ``host:port`` of the store of each; that of the first one is used.
        notices: ``host:port`` of the notice of each (``dgc.engines.notice``).
        questions: The number of each one's question that the lighthouse has counted.
        key: Differs between quorums, also of the same members.
    """

    members: tuple[str, ...]
    stores: tuple[str, ...]
    notices: tuple[str, ...]
    questions: tuple[int, ...]
    key: str

    def gone(self) -> list[str]:
        """Return the members whose store cannot be reached: they have died since they asked."""
        return [
            member
            for member, store in zip(self.members, self.stores, strict=True)
            if not answers(store)
        ]

    def absent(self, ranks: Sequence[int]) -> list[str]:
        """Return those of some ranks that never come to this quorum, as far as it can be seen."""
        found = []
        for rank in ranks:
            if not answers(self.stores[rank]):
                found.append(f'{self.members[rank]} has died')
                continue
            told = notice.read(self.notices[rank])  # None of one that is stopped, and may go on
            if told is not None and told[0] >= self.questions[rank]:
                found.append(f'{self.members[rank]} asks for another quorum')
        return found

    def meet(self, rank: int, seconds: float) -> None:
        """Wait until all members are there.

        Args:
            rank: Of this worker.
            seconds: Until the wait is given up.

        Raises:
            LostError: Where a member does not come.
        """
        if gone := self.gone():  # the client of a store would try again for half a minute
            raise LostError(f'{", ".join(gone)} died after asking for a quorum')
        own = self._place(rank)
        try:
            host, _, port = self.stores[0].rpartition(':')
            store = TCPStore(host, int(port), None, False, STORE, wait_for_workers=False)
            store.set(own, HERE)
            try:
                self._wait(store, seconds)
            except LostError:
                store.set(own, LEFT)
                raise
        except RuntimeError as error:
            if isinstance(error, LostError):
                raise
            raise LostError(f'the store of {self.members[0]} is gone: {error}') from None

    def _wait(self, store: TCPStore, seconds: float) -> None:
        """Wait for all members at a store. Raises LostError where one does not come."""
        deadline, patience = time.monotonic() + seconds, FIRST_LOOK
        missing = [*range(len(self.members))]
        while missing:
            with contextlib.suppress(RuntimeError):  # the time is over
                store.wait([*map(self._place, missing)], timedelta(seconds=patience))
            missing = [rank for rank in missing if not store.check([self._place(rank)])]
            patience = LOOK
            if absent := self.absent(missing):
                raise LostError('; '.join(absent))
            if missing and time.monotonic() > deadline:
                names = ', '.join(self.members[rank] for rank in missing)
                raise LostError(f'{names} did not come to the quorum in {seconds:g} s')
        marks = [store.get(self._place(rank)).decode() for rank in range(len(self.members))]
        if LEFT in marks:
            raise LostError(f'{self.members[marks.index(LEFT)]} has left the quorum')

    def _place(self, rank: int) -> str:
        """Return the key of a member at the store of the first one."""
        return f'dgc/{self.key}/member {rank}'


def answers(address: str) -> bool:
    """Return whether something listens at ``host:port``."""
    host, _, port = address.rpartition(':')
    try:
        socket.create_connection((host, int(port)), timeout=REACH.total_seconds()).close()
    except OSError:
        return False
    return True
