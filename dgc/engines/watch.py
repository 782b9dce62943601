"""Name the ranks that an engine's call waits for, and end a wait that is too long.

A call of which a rank is missing blocks in the library beneath, without a word. So each rank has a
thread that publishes a beat every few seconds over a side channel: a counter, and the call in which
it waits. A rank that waits long reads the others' beats: one whose counter stands still is stopped
or out of reach, one that waits in no call is busy elsewhere. Training steps send nothing for this.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dgc.engines.base import Engine, EngineError, StalledError, Wait

log = logging.getLogger('dgc')

BEATS = 15  # within warning_seconds
MISSED = 4  # beats after which a rank counts as silent
PAUSE = 0.5  # seconds, beside missed beats, after which this process was itself stopped
NAMED = 8  # ranks that a message lists
# The limit of a wait that no setting gives, in times of what is expected and of warning_seconds.
SLOWER = 4.0
SILENT, BUSY = 4.0, 20.0
MOST = 1800.0  # seconds; also the limit before times are known
LONGEST = 1e7  # seconds that a setting may have, four months; libraries count them in 32 bits
EXIT_SECONDS = 5.0  # that the end of a process waits for a request to the channel


@dataclass(frozen=True)
class Patience:
    """How long a rank waits for the others in one call of an engine: ``configs.engine``.

    Attributes:
        warning_seconds: Seconds until a message names the ranks that are waited for; it is repeated
            every two times as many.
        abort_seconds: Seconds until the wait ends with a StalledError; None: ``limit`` computes
            them from the steps and calls that were measured.

    Raises:
        EngineError: One is no number above 0 and up to 1e7, or the abort would come before the
            warning.
    """

    warning_seconds: float = 30.0
    abort_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ('warning_seconds', 'abort_seconds'):
            seconds = getattr(self, name)
            if name == 'abort_seconds' and seconds is None:
                continue
            if not isinstance(seconds, int | float):
                raise EngineError(
                    f'configs.engine.{name} must be a number of seconds, got {seconds!r}'
                )
            if not seconds > 0:
                raise EngineError(f'configs.engine.{name} must be above 0, got {seconds}')
            if seconds > LONGEST:
                raise EngineError(
                    f'configs.engine.{name} must be at most {LONGEST:g} seconds, got {seconds}'
                )
        if self.abort_seconds is not None and self.abort_seconds < self.warning_seconds:
            raise EngineError(
                f'configs.engine.abort_seconds = {self.abort_seconds} is below '
                f'configs.engine.warning_seconds = {self.warning_seconds}: a wait is reported '
                'before it is ended'
            )

    def limit(self, expected: float | None, is_busy: bool) -> float:
        """Return the seconds until a wait ends.

        Four times what is expected, since the slowest steps may be yet to come; but at least 4
        times ``warning_seconds``, or 20 times where the rank that is waited for is known to run: it
        may do what it has not done before, such as an evaluation on rank 0 alone.

        Args:
            expected: As in ``Wait``, the longest on any rank.
            is_busy: Whether the rank that is waited for runs, or is not known.
        """
        if self.abort_seconds is not None:
            return self.abort_seconds
        least = (BUSY if is_busy else SILENT) * self.warning_seconds
        most = self._most
        return most if expected is None else min(max(least, SLOWER * expected), most)

    @property
    def _most(self) -> float:
        return max(MOST, BUSY * self.warning_seconds)

    @property
    def library_seconds(self) -> int:
        """The time-out of the library beneath, which must not come before ours."""
        seconds = self._most if self.abort_seconds is None else self.abort_seconds
        return round(seconds * 1.1) + 10


class Channel(Protocol):
    """Carries beats beside the engine, for threads other than the engine's.

    Attributes:
        host: The process that serves it, for messages.
    """

    host: str

    def publish(self, text: str) -> None:
        """Replace this rank's text. Raises OSError or RuntimeError where the host is gone."""

    def read(self) -> Mapping[int, str]:
        """Return the texts that ranks have published, by rank. Raises as ``publish`` does."""


class Beat(NamedTuple):
    """What a rank publishes.

    Attributes:
        number: Counts its beats.
        seconds: For which it waits in a call; negative outside of calls.
        expected: As in ``Wait``; negative where it is not known.
        what: The call, '' outside of calls.
    """

    number: int
    seconds: float
    expected: float
    what: str

    @classmethod
    def of(cls, number: int, wait: Wait | None) -> Beat:
        """Return the beat of a rank that is in a call, or in none."""
        if wait is None:
            return cls(number, -1.0, -1.0, '')
        expected = -1.0 if wait.expected is None else wait.expected
        return cls(number, wait.seconds, expected, wait.what)

    def dump(self) -> str:
        """Encode for ``parse``."""
        return f'{self.number} {self.seconds:.3f} {self.expected:.3f} {self.what}'


def parse(text: str) -> Beat | None:
    """Return a beat from its text; None where it is none."""
    number, _, rest = text.partition(' ')
    seconds, _, rest = rest.partition(' ')
    expected, _, what = rest.partition(' ')
    printable = ''.join(each if each.isprintable() else ' ' for each in what[:200])
    try:
        return Beat(int(number), float(seconds), float(expected), printable)
    except ValueError:
        return None


class Watch:
    """Two threads beside an engine: one carries beats, one compares waits with the patience.

    They are separate since the channel blocks where the process that serves it is stopped.

    Args:
        rank, size: Of this process in the engine.
        patience: When to report, and when to end a wait.
        waiting: Returns the call that this rank waits in, or None.
        fail: Ends the engine with an error.
        channel: Carries beats; None where there is none, and every rank reports for itself.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        patience: Patience,
        waiting: Callable[[], Wait | None],
        fail: Callable[[Exception], None],
        channel: Channel | None,
    ) -> None:
        self._rank, self._size = rank, size
        self._patience = patience
        self._waiting, self._fail = waiting, fail
        self._channel = channel
        self._period = patience.warning_seconds / BEATS
        self._beats: dict[int, tuple[Beat, float]] = {}  # the last of each rank, and when it came
        self._answered = time.monotonic()  # when the channel did so last
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._look, name='dgc-watch', daemon=True)]
        if channel is not None:
            beats = threading.Thread(target=self._beat, args=(channel,), daemon=True)
            self._threads.append(beats)
        for thread in self._threads:
            thread.start()
        atexit.register(self.stop)  # threads within a library at the end would abort the process

    def stop(self) -> None:
        """End both threads, unless the channel blocks one of them."""
        atexit.unregister(self.stop)
        self._stopped.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=EXIT_SECONDS)

    def _beat(self, channel: Channel) -> None:
        """Publish this rank's state every period; read the others' while it waits."""
        number = 0
        while True:
            number += 1
            wait = self._waiting()
            try:
                channel.publish(Beat.of(number, wait).dump())
                if wait is not None and wait.seconds > self._first() / 2:
                    self._read(channel)
                self._answered = time.monotonic()
            except OSError:
                pass  # a request has failed; the next one may not
            except RuntimeError:
                return  # the connection of a store has failed; reports say that it does not answer
            if self._stopped.wait(self._period):
                return

    def _read(self, channel: Channel) -> None:
        now, beats = time.monotonic(), dict(self._beats)
        for rank, text in channel.read().items():
            beat, known = parse(text), beats.get(rank)
            is_new = beat is not None and (known is None or known[0].number != beat.number)
            if beat is not None and is_new and rank != self._rank:
                beats[rank] = beat, now
        self._beats = beats  # replaced, since the other thread may be reading it

    def _look(self) -> None:
        """Compare the present wait with the patience, every period."""
        call, due, is_named = -1, 0.0, False
        before, paused = time.monotonic(), 0.0
        while not self._stopped.wait(self._period):
            wait, now = self._waiting(), time.monotonic()
            passed, before = now - before, now
            if wait is None or wait.call != call:
                if is_named:
                    log.warning('%s: the wait is over', self._names([self._rank]))
                call, due, is_named = wait.call if wait else -1, self._first(), False
                paused = 0.0
            if wait is None:
                continue
            if passed > PAUSE + MISSED * self._period:
                # This process itself was stopped, as Slurm does with all ranks of a job that it
                # suspends. That is no wait for others, whose beats are read again first.
                paused += passed
                due = max(due, wait.seconds - paused + MISSED * self._period)
            wait = wait._replace(seconds=wait.seconds - paused)
            limit = self._limit(wait)
            if wait.seconds >= limit:
                self._give_up(wait, limit)
                return
            if wait.seconds >= due:
                due += 2 * self._first()
                is_named = self._report(wait, limit) or is_named

    def _first(self) -> float:
        """Return the seconds of a wait until the first report."""
        return self._patience.warning_seconds

    def _names(self, ranks: Sequence[int]) -> str:
        """Return what some ranks are called in reports."""
        return named(ranks)

    def _limit(self, wait: Wait) -> float:
        """Return the seconds until this wait ends: about the same on all ranks that wait, of which
        the one that expects most decides."""
        if self._patience.abort_seconds is not None:
            return self._patience.abort_seconds
        expected = [-1.0 if wait.expected is None else wait.expected]
        expected += [beat.expected for beat, _ in self._beats.values() if beat.seconds >= 0]
        is_busy = self._channel is None or bool(self._busy())
        return self._patience.limit(max(expected) if min(expected) >= 0 else None, is_busy)

    def _report(self, wait: Wait, limit: float) -> bool:
        """Log who is waited for, on the lowest rank that has waited about as long as this one.

        Returns:
            Whether it is this rank.
        """
        if self._rank != min(self._alive(self._patience.warning_seconds / 2)):
            return False
        end = f'{round(limit, 1):g} s (configs.engine.abort_seconds)'
        log.error('%s; ends after %s', self._sentence(wait), end)
        return True

    def _give_up(self, wait: Wait, limit: float) -> None:
        """End the engine. Of the ranks that do so now, the lowest one prints."""
        waiting = self._alive(limit - 2 * self._period)
        message = f'{self._sentence(wait)}: given up (configs.engine.abort_seconds)'
        self._fail(StalledError(message, min(waiting)))

    def _alive(self, seconds: float) -> set[int]:
        """Return this rank and those that wait for at least ``seconds``: the lowest one reports."""
        silent = {*self._silent()}
        return {self._rank} | {
            rank
            for rank, (beat, _) in self._beats.items()
            if beat.seconds >= seconds and rank not in silent
        }

    def _silent(self) -> list[int]:
        """Return the ranks whose beats have ended."""
        oldest = time.monotonic() - MISSED * self._period
        others = (rank for rank in range(self._size) if rank != self._rank)
        return [r for r in others if r not in self._beats or self._beats[r][1] < oldest]

    def _busy(self) -> list[int]:
        """Return the ranks that run, and are in no call."""
        silent = self._silent()
        return [
            r
            for r, (beat, _) in sorted(self._beats.items())
            if beat.seconds < 0 and r not in silent
        ]

    def _sentence(self, wait: Wait) -> str:
        """Return who waits for whom, and where."""
        start = f'{self._names([self._rank])} has waited {wait.seconds:.0f} s in {wait.what} for '
        if self._channel is None:
            return (
                f'{start}a rank that is not known: every rank that waits prints such a line, the '
                'one that is waited for does not'
            )
        if time.monotonic() - self._answered > MISSED * self._period:
            return (
                f'{start}a rank that is not known, since {self._channel.host} does not answer: it '
                'is stopped, or its machine cannot be reached'
            )
        return start + '; and for '.join(self._causes())

    def _causes(self) -> list[str]:
        """Return what is known of the ranks that are waited for, for ``_sentence``."""
        silent, busy, beats = self._silent(), self._busy(), sorted(self._beats.items())
        causes = []
        if silent:
            causes.append(
                f'{self._names(silent)}, which does not answer: stopped, or on a machine that '
                'cannot be reached'
            )
        if busy:
            causes.append(
                f'{self._names(busy)}, which runs and has not come to this call: it computes, '
                'loads data or saves'
            )
        if not causes:
            places = [f'{self._names([rank])} in {beat.what}' for rank, (beat, _) in beats]
            causes.append(
                'the network or a call that differs between ranks, since all of them wait: '
                + ', '.join(places[:NAMED])
            )
        return causes


def named(ranks: Sequence[int]) -> str:
    """Return 'rank 3', or 'ranks 3, 5', with at most eight numbers."""
    numbers = ', '.join(map(str, ranks[:NAMED]))
    more = f' and {len(ranks) - NAMED} more' if len(ranks) > NAMED else ''
    return f'rank{"s" if len(ranks) > 1 else ""} {numbers}{more}'


def watch(engine: Engine, patience: Patience, channel: Channel | None) -> Watch | None:
    """Start to watch an engine; None where there is no other rank to wait for."""
    if engine.size == 1:
        return None
    return Watch(engine.rank, engine.size, patience, engine.waiting, engine.fail, channel)


@contextmanager
def reported(message: str, seconds: float) -> Iterator[None]:
    """Log ``message`` where the block takes longer than ``seconds``."""
    timer = threading.Timer(seconds, log.error, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
