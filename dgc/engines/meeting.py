"""The members of a quorum meet before they connect to each other.

gloo waits for a member that never comes until its time-out, and cannot be interrupted. A member
does not come where it has died since it asked, or where it follows another quorum: its question
ended without an answer just before the quorum was made, or it has seen that somebody else does not
come. Each worker has a notice of the quorum that it follows, and of which of its questions it has
given up (``dgc.engines.notice``). So who waits reads the others' notices, and asks anew at once.

A TCPStore is not used for this: its client looks up the names of addresses, also of those of a wait
that ends, and a name server that does not answer holds it up for seconds (pytorch issue 159007).
"""

from __future__ import annotations

import time
from typing import NamedTuple

from dgc.engines.base import LostError
from dgc.engines.notice import Notice, read

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.2  # seconds between two looks at the others


class Quorum(NamedTuple):
    """Who takes part, as decided by the lighthouse.

    Attributes:
        members: The workers' ids, in the order of their ranks.
        stores: ``host:port`` of the store of each; that of the first one is used.
        notices: ``host:port`` of the notice of each.
        questions: The number of each one's question that the lighthouse has counted.
        key: Differs between quorums, also of the same members.
    """

    members: tuple[str, ...]
    stores: tuple[str, ...]
    notices: tuple[str, ...]
    questions: tuple[int, ...]
    key: str

    def meet(self, own: Notice, seconds: float) -> None:
        """Wait until all members follow this quorum.

        Args:
            own: The notice of this worker, a member.
            seconds: Until the wait is given up.

        Raises:
            LostError: Where a member does not come, as far as it can be seen, or not in time.
        """
        own.quorum = self.key
        deadline, pause = time.monotonic() + seconds, SHORTEST_PAUSE
        # Everybody is looked at each time: who was there may have left since.
        while missing := self._missing(own):
            if time.monotonic() > deadline:
                names = ', '.join(missing)
                raise LostError(f'{names} did not come to the quorum in {seconds:g} s')
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _missing(self, own: Notice) -> list[str]:
        """Return the members that have not come yet. Raises LostError where one never comes."""
        missing, lost = [], []
        others = zip(self.members, self.notices, self.questions, strict=True)
        for member, address, question in others:
            if address == own.address:
                continue
            try:
                told = read(address)
            except OSError:
                lost.append(f'{member} has died')
                continue
            if told is not None and told.given_up >= question:
                lost.append(f'{member} asks for another quorum')
            elif told is None or told.quorum != self.key:
                missing.append(member)
        if lost:
            raise LostError('; '.join(lost))
        return missing
