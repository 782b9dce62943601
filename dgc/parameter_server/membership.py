"""Who trains: a fixed number of places, each of which one worker holds while it is alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Member:
    """A worker that holds a place.

    seen: when it was last heard of, in seconds of the server's clock.
    sequence, reply: of its last request, for when that comes again.
    base: version of the model that it was answered with last.
    ticket: drawn when it was handed the model that its record began with.
    """

    session: int
    place: int
    seen: float
    sequence: int = 0
    reply: bytes = b''
    base: int = 0
    ticket: int = 0


class Membership:
    """places: how many workers may train at once."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._members: dict[int, Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._members.values()))

    def get(self, session: int) -> Member | None:
        """The member with this session, if it is one."""
        return self._members.get(session)

    def admit(self, session: int, now: float) -> Member | None:
        """Give ``session`` the lowest free place, or the one that it has; None: all are taken."""
        if session in self._members:
            return self._members[session]
        taken = {member.place for member in self}
        free = next((place for place in range(self.places) if place not in taken), None)
        if free is None:
            return None
        self._members[session] = Member(session, free, now)
        return self._members[session]

    def leave(self, session: int) -> Member | None:
        """Free its place."""
        return self._members.pop(session, None)

    def excuse(self, seconds: float) -> None:
        """Do not hold a silence against anybody while which nobody listened."""
        for member in self:
            member.seen += seconds

    def expire(self, before: float) -> list[Member]:
        """Free the places of those not heard of since ``before``."""
        silent = [member for member in self if member.seen < before]
        for member in silent:
            del self._members[member.session]
        return silent
