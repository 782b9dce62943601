"""The engine over torchft: workers may die, stall and join; who is left goes on.

torchft's lighthouse decides who takes part, and its process groups can be made anew. What a worker
does when others go is here, and not torchft's Manager, which votes within one replica only, and
heals by unpickling what it gets over HTTP.

    step     exchanges … confirm()    a vote: each worker has completed all exchanges. A worker that
                                      got no answer to its vote learns the outcome from the others
                                      in the next group, so that all or none apply the step
    then     poll()                   once a second, as worker 0 says: does somebody want to join?
    or       reform()                 after an error: a group of those who are there

``history`` is a digest of the groups in which a worker's steps were confirmed. Workers of one
history have the same parameters; others are behind, and take the state of the ``source``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import (  # type: ignore[attr-defined]
    AllgatherOptions,
    AllreduceOptions,
)

from dgc.engines.base import Engine, EngineError, LostError
from dgc.engines.elastic_watch import ElasticWatch, GroupCall
from dgc.engines.lighthouse import ElasticSettings, Lighthouse, UnreachableError
from dgc.engines.meeting import Quorum
from dgc.engines.watch import Patience

log = logging.getLogger('dgc')

CONNECT_SECONDS = 5.0  # until all members of a group have met
ASK_SECONDS, JOIN_SECONDS = 60.0, 1.0  # for an answer, of a member and of one that wants to join
# torch looks up the name of each address that its stores connect to, until a lookup fails. A name
# server that does not answer at once would hold up the others for ten seconds (pytorch 159007).
NAME_SERVER = 'timeout:1 attempts:1'
POLL_SECONDS = 5.0  # until the lighthouse has answered whether somebody wants to join
LEAST_SILENT, MOST_SILENT = 0.5, 30.0  # seconds between questions to a lighthouse that is gone
LEAST_DROP_SECONDS = 10.0
STEPS_TO_DROP = 10  # a call that takes as long as so many of the slowest steps is given up
GIVE_UP_SECONDS = 1800.0  # without a lighthouse, where it is needed
DIGITS = 2**62
REMEMBERED = 1000  # steps after which a worker that comes back is a new one


class Place(NamedTuple):
    """Where a worker stands, as it tells the others when a group is made.

    Attributes:
        committed: The steps that it has confirmed.
        history: Of these steps.
        maybe: The history with one more step, whose vote it got no answer to; 0 for none.
        is_fresh: Whether it has made no step yet since it started. What it has is from a file, or
            nothing: others that train do not need it.
        trains: A digest of what it trains.
    """

    committed: int
    history: int
    maybe: int
    is_fresh: int
    trains: int


class Note(NamedTuple):
    """What a worker publishes with each vote, for when it is lost.

    Attributes:
        residual: The norm of its residual, after a recent step.
        gradient: The norm of the mean gradient of that step.
    """

    residual: float = 0.0
    gradient: float = 0.0


class TorchftEngine(Engine):
    """Collectives among the workers that are there, over torchft's group of gloo.

    A new engine is alone, with a world size of 1, until ``reform()``. Rank and world size change in
    ``reform()`` and ``poll()`` only, and in a ``confirm()`` whose vote is not answered.

    Tensors on a GPU are copied to the host and back.

    Args:
        settings: Where the lighthouse is, and how long others are waited for.
        trains: Any text that must be the same on all workers.
        warning_seconds: Of a wait until a line names the workers that are waited for, and the
            bucket; or half the time after which they are dropped, where that is less.

    Attributes:
        trains: The same; an optimizer adds what it trains.
        worker: The id of this worker.
        members: The ids of all workers, by rank.
        committed: The number of steps that all workers have confirmed.
        source: The rank whose state the workers that are behind take.
        behind: The ranks that do not have that state.
        is_fresh: Whether no step was confirmed yet since the workers started.
        is_starting: Whether that holds for all members of the group.
        is_settled: Whether all members have the same state, for this world size.
        was_one: Of a worker that has taken the source's state: whether its own was an earlier one
            of the same history, so that what it has not sent is still of use.
        poll_due: Whether all members are to call ``poll()`` before the next step.
        note: Returns what is published with the next vote.
        notes: What each worker published last.
        wish: Returns whether this worker wishes all to do something, such as a checkpoint, after
            the step that is voted on.
        is_wished: Whether a worker wished so in the last vote: the same on all that got its answer.

    Raises:
        EngineError: Where torchft is not installed, or a setting cannot be used.
    """

    name = 'torchft'

    def __init__(
        self,
        settings: ElasticSettings,
        trains: str = '',
        warning_seconds: float = Patience.warning_seconds,
    ) -> None:
        super().__init__(0, 1, 0, 1)
        os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
        os.environ.setdefault('RES_OPTIONS', NAME_SERVER)
        self.settings = settings
        self.lighthouse = Lighthouse(settings.lighthouse, settings.worker)
        self.worker = self.lighthouse.worker
        self.members: tuple[str, ...] = (self.worker,)
        self.committed, self.history = 0, secrets.randbelow(DIGITS)
        self.is_fresh = self.is_starting = True
        self._is_member = False  # since a group was settled
        self.source, self.behind = 0, frozenset[int]()
        self.is_settled, self.is_broken = False, True
        self.was_one = False
        self.poll_due = False
        self._past: deque[int] = deque([self.history], maxlen=REMEMBERED)
        self.note: Callable[[], Note] = Note
        self.notes: dict[str, Note] = {}
        self.wish: Callable[[], bool] = bool
        self.is_wished = False
        self.trains = trains
        self._make = group_of_gloo()  # before others wait for this worker
        self._group: Any = None
        self._limited = CONNECT_SECONDS
        self._key = ''
        self._next_poll, self._poll_seconds = 0.0, settings.join_seconds
        self._silent_seconds = LEAST_SILENT
        self._group_call: GroupCall | None = None
        self._group_calls = 0
        own = self.lighthouse.notice
        self._watch = ElasticWatch(own, lambda: self._group_call, warning_seconds)
        self._seconds: deque[float] = deque(maxlen=20)  # of steps
        self._last = time.monotonic()

    # ------------------------------------------------------------ steps

    @property
    def drop_seconds(self) -> float:
        """Seconds after which a call is given up."""
        if self.settings.drop_seconds is not None:
            return self.settings.drop_seconds
        return max(LEAST_DROP_SECONDS, STEPS_TO_DROP * max(self._seconds, default=0.0))

    def confirm(self) -> None:
        """Return where all workers have completed the exchanges of this step. See Engine.

        A worker that gets no answer to its vote makes a group of those who are left, and learns
        from them whether the step was confirmed.
        """
        self._call(self._confirm, 0, 0, 0)

    def settle(self, copied: str = '') -> set[str]:
        """Note that all members have the same state. A collective.

        Args:
            copied: A worker that is gone, of which this one has a copy of the residual.

        Returns:
            Those of the workers that are gone of which a member has a copy.

        Raises:
            LostError: Where a worker is gone.
        """
        return self._call(partial(self._settle, copied), 0, 0, 0)

    def poll(self) -> None:
        """Take in the workers that want to join. A collective, between two steps.

        Where the lighthouse does not answer, the members go on without it, and ask again later.

        Raises:
            EngineError: As ``reform``, where a member is gone.
        """
        self._call(self._poll, 0, 0, 0)

    def reform(self) -> None:
        """Make a group of the workers that are there, after an error or at the start.

        Raises:
            EngineError: Where the lighthouse does not answer for half an hour, or this worker
                trains something else than the others.
        """
        self._call(self._reform, 0, 0, 0)

    def heal(self, state: Callable[[], bytes]) -> bytes | None:
        """Send the source's state to the ranks that are behind. A collective.

        Args:
            state: Returns it; called on the source.

        Returns:
            The state, on the ranks that are behind; None on others.

        Raises:
            LostError: Where a worker is gone.
        """
        return self._call(partial(self._heal, state), 0, 0, 0)

    def lost(self, before: Sequence[str]) -> list[str]:
        """Return those of some workers that are no members."""
        return [worker for worker in before if worker not in self.members]

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker stands, for a checkpoint. See ``load_state_dict``."""
        return {
            'rank': self.rank,
            'members': list(self.members),
            'committed': self.committed,
            'past': list(self._past),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where a worker stood that saved ``state_dict()``, before the first ``reform()``.

        Workers with the state of the same step go on together. Those that train already give
        theirs to this worker, also where it is an earlier one.
        """
        self.rank, self.size = int(state['rank']), len(state['members'])
        self.committed, self.history = int(state['committed']), int(state['past'][-1])
        self._past.clear()
        self._past.extend(state['past'])

    def close(self) -> None:
        """Leave. The others find out when they wait for this worker, or at their next poll."""
        if self.is_closed:
            return
        self._watch.stop()
        self.lighthouse.close()
        super().close()
        self._break()

    def _confirm(self) -> None:
        key, note = self._key, self.note()
        polls = float(self.rank == 0 and time.monotonic() >= self._next_poll)
        numbers = [float(self.committed), polls, float(self.wish()), *note]
        vote, self.is_wished = torch.tensor(numbers, dtype=torch.float64), False
        try:
            votes = self._gather(vote)
        except LostError:
            if not self._reform(in_doubt=True):
                raise
        else:
            if any(int(each[0]) != self.committed for each in votes):
                raise EngineError(f'{self.worker}: the workers are at different steps: {votes}')
            self.poll_due = any(each[1] for each in votes)
            self.is_wished = any(each[2] for each in votes)
            self.notes = {w: Note(*v[3:]) for w, v in zip(self.members, votes, strict=True)}
        self.committed, self.history = self.committed + 1, extended(self.history, key)
        self._past.append(self.history)
        self.is_fresh = self.is_starting = False
        now = time.monotonic()
        self._seconds.append(now - self._last)
        self._last = now

    def _settle(self, copied: str) -> set[str]:
        marks = self._gather(torch.tensor([digest(copied) if copied else 0]))
        self.is_settled, self.behind = True, frozenset()
        self.is_fresh, self._is_member = self.is_starting, True
        self._last = time.monotonic()
        known = {digest(worker): worker for worker in self.notes}
        return {known[mark] for (mark,) in marks if mark in known}

    # ------------------------------------------------------------ members

    def _poll(self) -> None:
        quorum, mark = None, 0
        try:
            quorum = self.lighthouse.ask(POLL_SECONDS)
            mark = digest(quorum.key)
        except UnreachableError as error:
            problem = str(error)
        try:
            marks = [int(each[0]) for each in self._gather(torch.tensor([mark]))]
        except LostError:
            # Those who found out before have taken their question's answer for a new group: it is
            # the same quorum, and they wait in it.
            self._reform(first=quorum)
            return
        self.poll_due = False
        self._poll_seconds = self.settings.join_seconds
        if not any(marks):  # it has answered nobody
            self._poll_seconds = self._silent_seconds = min(2 * self._silent_seconds, MOST_SILENT)
            if self.rank == 0:
                log.warning(
                    '%s: training goes on without it, and nobody can join; asked again in %.0f s',
                    *(problem, self._poll_seconds),
                )
        else:
            self._silent_seconds = LEAST_SILENT
        self._next_poll = time.monotonic() + self._poll_seconds
        if quorum is None or quorum.members == self.members:
            return
        if len({*marks}) == 1:
            self._reform(first=quorum)
        else:
            self._give_up(quorum)

    def _give_up(self, quorum: Quorum) -> None:
        """Tell the other members of a quorum that this worker does not come."""
        self.lighthouse.give_up(quorum.questions[quorum.members.index(self.worker)])

    def _reform(self, in_doubt: bool = False, first: Quorum | None = None) -> bool:
        """See ``reform``.

        Args:
            in_doubt: Whether this worker got no answer to its vote.
            first: A quorum to try before others.

        Returns:
            Whether the step of that vote was confirmed.
        """
        place, quorum = self._place(in_doubt), first
        self._break()
        while True:
            # The lighthouse waits for members that have not asked yet, but for no longer than its
            # time-out since the first question: one that only wants to join asks again and again.
            patience = ASK_SECONDS if self._is_member else JOIN_SECONDS
            quorum = quorum or self.lighthouse.ask_until(GIVE_UP_SECONDS, patience)
            try:
                return self._form(quorum, place)
            except LostError as error:
                log.warning('%s: %s; asks for another quorum', self.worker, error)
                self._give_up(quorum)
                quorum = None

    def _form(self, quorum: Quorum, own: Place) -> bool:
        """Make the group of a quorum, and find out who is behind.

        Args:
            quorum: Its members.
            own: Where this worker stands.

        Returns:
            Whether the step whose vote got no answer was confirmed.

        Raises:
            LostError: Where a member does not come.
            EngineError: Where this worker trains something else than the others.
        """
        self._break()
        self.members = quorum.members
        self.rank, self.size = quorum.members.index(self.worker), len(quorum.members)
        self._key, self.is_settled, self.poll_due = quorum.key, False, False
        self._next_poll = time.monotonic() + self._poll_seconds
        if self.size > 1:
            self._meet(quorum)
        names = [member.rpartition(':')[0] for member in quorum.members]
        self._watch.follow(self.rank, names, quorum.notices)
        self.is_broken = False
        places = [Place(*each) for each in self._gather(torch.tensor(own))]
        self.source = source_of(places)
        source = places[self.source]
        self.is_starting = bool(source.is_fresh)
        if source.trains != own.trains:
            raise EngineError(
                f'{self.worker} does not train what {self.members[self.source]} does: start all '
                'workers with the same configuration, code and number of samples'
            )
        self.behind = frozenset(
            rank
            for rank, place in enumerate(places)
            if source.history not in (place.history, place.maybe)
        )
        return source.history == own.maybe

    def _place(self, in_doubt: bool = False) -> Place:
        """Return where this worker stands, in the group that it is in."""
        maybe = extended(self.history, self._key) if in_doubt else 0
        return Place(self.committed, self.history, maybe, int(self.is_fresh), digest(self.trains))

    def _meet(self, quorum: Quorum) -> None:
        """Connect to the other members. Raises LostError where one does not come."""
        quorum.meet(self.lighthouse.notice, CONNECT_SECONDS)
        self._group = self._make(timeout=timedelta(seconds=CONNECT_SECONDS))
        self._limited = CONNECT_SECONDS
        address = f'{quorum.stores[0]}/dgc/{quorum.key}'
        try:
            self._group.configure(address, self.worker, self.rank, self.size)
        except RuntimeError as error:  # a member has died since, or did not get the quorum
            self._group = None
            raise LostError(f'{self.size} workers have not met: {first_line(error)}') from None

    def _break(self) -> None:
        """Leave the group: the others' calls fail then, and they find out."""
        group, self._group = self._group, None
        self.is_broken = True
        if group is not None:
            group.abort()

    def _heal(self, state: Callable[[], bytes]) -> bytes | None:
        """See ``heal``. The state is sent once for each rank that is behind."""
        if not self.behind:
            return None
        seconds, received = self.settings.heal_seconds, None
        past = torch.tensor(self._past)
        body = torch.zeros(0, dtype=torch.uint8)
        if self.rank == self.source:
            body = torch.frombuffer(bytearray(state()), dtype=torch.uint8)
        for rank in sorted(self.behind):
            if self.rank == self.source:
                head = torch.tensor([len(body), len(past), self.committed])
                for tensor in (head, body, past):
                    self._transfer(tensor, rank, None, seconds)
            elif self.rank == rank:
                head = torch.zeros(3, dtype=torch.int64)
                self._transfer(head, None, self.source, seconds)
                body = torch.zeros(int(head[0]), dtype=torch.uint8)
                past = torch.zeros(int(head[1]), dtype=torch.int64)
                for tensor in (body, past):
                    self._transfer(tensor, None, self.source, seconds)
                received = body.numpy().tobytes()
        self._gather(torch.zeros(1), seconds)  # the others wait here, and not in a step
        if received is not None:
            # A state from a file had the others' later steps once: its residual has been sent.
            self.was_one = not self.is_fresh and self.history in past.tolist()
            self._past.clear()
            self._past.extend(past.tolist())
            self.committed, self.history = int(head[2]), self._past[-1]
            self.is_fresh = self.is_starting
        return received

    # ------------------------------------------------------------ calls of the group

    def _run(self, start: Callable[[], Sequence[Any]], seconds: float | None = None) -> None:
        """Make calls of the group and wait for them. Raises LostError where one fails."""
        if self.is_broken:
            raise LostError(f'{self.worker} has left the group, since an earlier call failed')
        call = self._enter(seconds)
        works: list[Any] = []
        failure = ''
        try:
            self._limit(call.limit)
            works += start()
            for work in works:
                work.wait()
        except RuntimeError as error:
            failure = first_line(error)
        if not failure:
            self._group_call = None
            return
        # An exception keeps the variables of its frames, and a call keeps the connections of its
        # group open: those who wait for this worker would not find out. So neither is kept.
        works.clear()
        work = None
        self._break()
        passed = time.monotonic() - call.since
        if passed >= call.limit:
            who = self._watch.waited_for()
            failure = f'given up after {passed:.1f} s ({call.setting})'
            failure += f' of waiting for {who}' if who else ''
        self._group_call = None
        raise LostError(f'{self.worker}: {call.what} failed: {failure}')

    def _enter(self, seconds: float | None) -> GroupCall:
        """Note that a call of the group begins.

        Args:
            seconds: After which it is given up; None for ``drop_seconds``.
        """
        job = self._running  # of the engine, or a part of one: its method
        method = getattr(job, 'func', job)
        what = 'a call' if method is None else method.__name__.strip('_')
        what += f' of bucket {self.bucket}' if self.bucket else ''
        limit = self.drop_seconds if seconds is None else seconds
        setting = f'configs.elastic.{"drop" if seconds is None else "heal"}_seconds'
        self._group_calls += 1
        self._group_call = GroupCall(self._group_calls, what, time.monotonic(), limit, setting)
        return self._group_call

    def _limit(self, seconds: float) -> None:
        """Set the time after which gloo itself ends a call: leaving a group waits for its calls."""
        if seconds != self._limited:
            self._limited = seconds
            backend = self._group.parent._get_backend(torch.device('cpu'))
            backend.set_timeout(timedelta(seconds=seconds))

    def _gather(self, tensor: Tensor, seconds: float | None = None) -> list[list[Any]]:
        """Return the ``tensor[m]`` of all members, as lists, by rank."""
        if self.size == 1:
            return [tensor.tolist()]
        rows = [torch.empty_like(tensor) for _ in self.members]
        self._run(lambda: [self._group.allgather([rows], [tensor], AllgatherOptions())], seconds)
        return [row.tolist() for row in rows]

    def _transfer(
        self, tensor: Tensor, destination: int | None, source: int | None, seconds: float
    ) -> None:
        """Send ``tensor`` to one rank, or overwrite it with that of another one."""
        if destination is None:
            self._run(lambda: [self._group.recv([tensor], source, 0)], seconds)
        else:
            self._run(lambda: [self._group.send([tensor], destination, 0)], seconds)

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            host = tensor.cpu()
            self._run(lambda: [self._group.allreduce([host], AllreduceOptions())])
            if host is not tensor:
                tensor.copy_(host)
        return tensor

    def _all_gather(self, tensor: Tensor) -> Tensor:
        if self.size == 1:
            return tensor[None]
        host = tensor.cpu()
        gathered = host.new_empty((self.size, host.numel()))
        rows = list(gathered)
        self._run(lambda: [self._group.allgather([rows], [host], AllgatherOptions())])
        return gathered.to(tensor.device)

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        if self.rank in (destination, source):
            return self._to_itself(tensor, destination, source)
        host = tensor.cpu()
        received = None if source is None else torch.empty_like(host)

        def start() -> list[Any]:
            """Begin to send and to receive; return what is to be waited for."""
            works = []
            if destination is not None:
                works.append(self._group.send([host], destination, 0))
            if received is not None:
                works.append(self._group.recv([received], source, 0))
            return works

        self._run(start)
        return None if received is None else received.to(tensor.device)

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        if self.size > 1:
            host = tensor.cpu()
            self._run(lambda: [self._group.broadcast_one(host, root)])
            if host is not tensor:
                tensor.copy_(host)
        return tensor

    def _barrier(self) -> None:
        self._gather(torch.zeros(1))


def source_of(places: Sequence[Place]) -> int:
    """Return the rank whose state all members go on with.

    Of those that have trained, it has the most steps; of several histories with as many, the one
    of the most workers. All members compute the same.
    """
    seasoned = [place for place in places if not place.is_fresh] or places
    most = max(place.committed for place in seasoned)
    counts = Counter(place.history for place in seasoned if place.committed == most)
    history = max(counts, key=lambda each: (counts[each], each))
    return next(rank for rank, place in enumerate(places) if place.history == history)


def group_of_gloo() -> Any:
    """Return torchft's class of process groups over gloo, which takes a while to import."""
    from torchft.process_group import ProcessGroupGloo

    return ProcessGroupGloo


def digest(text: str) -> int:
    """Return a digest of ``text`` that an int64 holds, above 0."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), 'big') >> 2 or 1


def extended(history: int, key: str) -> int:
    """Return a history with one more step, confirmed in the group ``key``."""
    return digest(f'{history} {key}')


def first_line(error: Exception) -> str:
    """Return the beginning of an error's text: libraries append their stack."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
