"""How long a rank takes: what the limit of a wait is computed from where no setting gives one."""

from __future__ import annotations

CALLS = 50  # of buckets, until the times are those of training and no longer those of its start


class Pace:
    """The longest times of a rank on one engine, in seconds.

    A call of an engine ends when the slowest rank has come to it and the bytes have been carried.
    So the longest call includes the others' steps, and the longest time between two calls is this
    rank's own. Neither includes a call that has not ended.
    """

    def __init__(self) -> None:
        self.longest = 0.0  # of calls, and of times between them
        self._calls = 0  # of buckets
        self._ended: float | None = None  # when the last call did

    def begin(self, now: float) -> None:
        """Note that a call begins, at ``now`` in seconds of ``time.perf_counter``."""
        if self._ended is not None:
            self.longest = max(self.longest, now - self._ended)

    def end(self, began: float, now: float, bucket: str) -> None:
        """Note that a call has ended, and the bucket that it served, '' for none."""
        self.longest = max(self.longest, now - began)
        self._calls += bool(bucket)
        self._ended = now

    def expect(self, sent: int, seconds: float, nbytes: int) -> float | None:
        """Return the longest time that is to be expected of a call; None before training.

        Args:
            sent: Bytes that this rank has sent in all calls.
            seconds: For which it was in calls, and waited or sent.
            nbytes: That this call sends.
        """
        if self._calls < CALLS:
            return None
        return max(self.longest, nbytes * seconds / sent if sent else 0.0)
