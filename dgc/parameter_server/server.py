"""The server's side of DGS: the model, a record of every worker's parameters, and its answers.

No socket and no clock is known here: messages and times are handed in, so that every interleaving
can be tried in one process (service.py has the sockets).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.codec import CodecError
from dgc.parameter_server import flat, protocol, sections
from dgc.parameter_server.composition import Asynchronous
from dgc.parameter_server.membership import Member, Membership
from dgc.parameter_server.model import Model
from dgc.parameter_server.protocol import Kind, Message, ProtocolError

log = logging.getLogger(__name__)
DIGEST = 32  # bytes


class Course(NamedTuple):
    """How much is trained, by how many.

    places: workers that may train at once. steps_per_epoch: of one of them.
    updates: that workers make in all, until training is over.
    """

    places: int
    steps_per_epoch: int
    updates: int


class Update(NamedTuple):
    """What one update came to.

    version: of the model with it. place: of its worker. staleness: updates of others since the
    model that it was computed on. received, sent: bytes of the update and of its answer.
    elements: sent up and down, in all.
    """

    version: int
    place: int
    staleness: int
    received: int
    sent: int
    elements: int


class Observer:
    """Is told what happens, in the order in which it does. Does nothing by itself."""

    def updated(self, update: Update) -> None:
        """An update was taken in."""

    def losses(self, place: int, values: list[float]) -> None:
        """A worker has reported the training losses of its last steps."""


class Server:
    """Answers messages.

    settings: an SGD over the model's parameters, as the workers have it; never stepped.
    named_parameters, buffers: of the whole model, which the server trains from now on.
    configuration: any text that workers must have alike.
    timeout: seconds without a sign of life after which a worker's place is free.
    """

    def __init__(
        self,
        settings: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]],
        buffers: Iterable[Tensor],
        composition: Asynchronous,
        course: Course,
        configuration: str = '',
        observer: Observer | None = None,
        timeout: float = 20.0,
    ) -> None:
        check(course)
        named = list(named_parameters)
        self.composition = composition
        self.course = course
        self.observer = observer or Observer()
        self.timeout = timeout
        self.version = 0
        self.membership = Membership(course.places)
        self._buckets = composition.plan(settings, named, ())
        self.model = Model(flat.flatten(self._buckets), composition)
        self.statistics = flat.Statistics(buffers)
        self._aspects = flat.aspects(named, self.statistics.numel, configuration)
        self._reported: dict[int, Tensor] = {}  # by place
        self._applied: dict[int, int] = {}  # session → number of its last update
        self._answers = {
            Kind.JOIN: self._join,
            Kind.PUSH: self._push,
            Kind.LEAVE: self._leave,
            Kind.LOSSES: self._losses,
            Kind.STATISTICS: self._statistics,
            Kind.HEARTBEAT: self._heartbeat,
        }

    @property
    def numels(self) -> list[int]:
        """Elements of each bucket."""
        return [bucket.numel for bucket in self._buckets]

    @property
    def most_bytes(self) -> int:
        """What no message from a worker, and none to it, is longer than."""
        return sections.most_bytes(self.numels, self.statistics.numel, len(self._aspects))

    @property
    def step(self) -> int:
        """Steps of a worker that the progress amounts to."""
        return self.version // self.course.places

    @property
    def finished(self) -> bool:
        """Whether all updates have been made."""
        return self.version >= self.course.updates

    @property
    def drained(self) -> bool:
        """Whether training is over and every worker knows it, or is gone."""
        return self.finished and not len(self.membership)

    def handle(self, frame: bytes | memoryview, now: float, sender: str = '') -> bytes | None:
        """The reply to a frame, if there is one. What makes no sense is refused and logged.

        now: seconds, of any clock that does not go back. sender: for the log.
        """
        message = None
        try:
            message = protocol.read(frame, protocol.FROM_WORKER)
            member = self.membership.get(message.session)
            if member is not None:
                member.seen = now
            reply = self._answers[message.kind](message, now)
        except (ProtocolError, CodecError) as error:
            log.warning('refused a message from %s: %s', sender or 'a worker', error)
            if message is not None and message.kind in protocol.TOLD:
                return None
            reply = protocol.refusal(message, str(error)).write()
        return reply

    def tick(self, now: float) -> None:
        """Drop workers that have not been heard of for too long."""
        for member in self.membership.expire(now - self.timeout):
            self._forget(member)
            log.warning('worker %d is silent: its place is free', member.place)

    def average(self) -> Tensor:
        """BatchNorm's statistics: the mean of what the places last reported, float32 ``[m]``."""
        reports = list(self._reported.values())
        return torch.stack(reports).mean(0) if reports else self.statistics.read()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a server needs to go on, whatever workers there will be.

        The records are not in it: workers that return get the model anew.
        """
        return {
            'version': self.version,
            'parameters': {
                name: view.clone()
                for bucket, values in zip(self._buckets, self.model.flats, strict=True)
                for name, view in bucket.views(values)
            },
            'statistics': self.average(),
            'applied': dict(self._applied),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict()``. Raises ValueError where it is that of another model."""
        saved = state['parameters']
        for bucket, values in zip(self._buckets, self.model.flats, strict=True):
            for name, view in bucket.views(values):
                if name not in saved or saved[name].shape != view.shape:
                    raise ValueError(f'the checkpoint has no {name} of shape {tuple(view.shape)}')
                view.copy_(saved[name])
        if len(state['statistics']) != self.statistics.numel:
            raise ValueError('the checkpoint has buffers of another model')
        self.statistics.write(state['statistics'])
        self.version = int(state['version'])
        self._applied = dict(state['applied'])
        self._reported = {}

    def _join(self, message: Message, now: float) -> bytes | None:
        self._check_aspects(message.body)
        if self.finished:
            return self._reply(message, Kind.FINISHED)
        member = self.membership.admit(message.session, now)
        if member is None:
            return self._reply(message, Kind.FULL)
        if message.sequence <= member.sequence:
            return self._again(member, message)
        member.ticket = secrets.randbits(64)
        log.info('worker %d begins at update %d', member.place, self.version)
        body = [protocol.WELCOME_NUMBERS.pack(*self._numbers())]
        parts = self.model.hand_over(member.place)
        body += [sections.write(part, self.composition.codec) for part in parts]
        body.append(sections.to_bytes(self.average()))
        return self._answer(member, message, Kind.WELCOME, b''.join(body))

    def _numbers(self) -> tuple[int, int, int]:
        return self.course.places, self.course.updates, self.course.steps_per_epoch

    def _check_aspects(self, body: bytes | memoryview) -> None:
        if len(body) != DIGEST * len(self._aspects):
            raise ProtocolError('it was started with another version of this program')
        for number, (aspect, digest) in enumerate(self._aspects.items()):
            if body[number * DIGEST : (number + 1) * DIGEST] != digest:
                raise ProtocolError(
                    f'the worker and the server differ in {aspect}: start both with the same code, '
                    'configuration and command line'
                )

    def _push(self, message: Message, now: float) -> bytes | None:
        member = self.membership.get(message.session)
        if member is not None and message.sequence <= member.sequence:
            return self._again(member, message)
        if member is None or message.ticket != member.ticket:
            return self._reply(message, Kind.REJOIN)
        if message.update <= self._applied.get(message.session, 0):
            # Its answer did not survive a restart, or the loss of its place.
            return self._answer_difference(member, message)[0]
        if self.finished:
            return self._reply(message, Kind.FINISHED)
        parts = sections.read(message.body, self.numels, self.composition.codec)
        if not all(bool(part.values.isfinite().all()) for part in parts):
            raise ProtocolError('an update holds an infinity or a NaN')
        staleness = self.version - member.base
        self.model.take_in(parts, self.composition.scaling.factor(staleness))
        self.version += 1
        self._applied[message.session] = message.update
        reply, down = self._answer_difference(member, message)
        up = sum(len(part.values) for part in parts)
        received = protocol.HEADER.size + len(message.body)
        self.observer.updated(
            Update(self.version, member.place, staleness, received, len(reply), up + down)
        )
        return reply

    def _again(self, member: Member, message: Message) -> bytes | None:
        """The reply to a request that comes again; nobody waits for one to an older request."""
        return member.reply if message.sequence == member.sequence else None

    def _answer_difference(self, member: Member, message: Message) -> tuple[bytes, int]:
        """The answer to an update, and the number of its elements."""
        step, steps_per_epoch = self.step, self.course.steps_per_epoch
        choices = [
            (bucket.name, self.composition.down(bucket, step, steps_per_epoch), bucket.ratio)
            for bucket in self._buckets
        ]
        body, elements = self.model.answer(member.place, choices)
        return self._answer(member, message, Kind.ANSWER, body), elements

    def _answer(self, member: Member, message: Message, kind: Kind, body: bytes) -> bytes:
        """A reply that changed what the server knows of a worker, kept in case it is lost."""
        member.sequence, member.base = message.sequence, self.version
        who = {'place': member.place, 'ticket': member.ticket}
        member.reply = message.reply(kind, version=self.version, body=body, **who).write()
        return member.reply

    def _reply(self, message: Message, kind: Kind) -> bytes:
        return message.reply(kind, version=self.version).write()

    def _leave(self, message: Message, now: float) -> bytes:
        member = self.membership.leave(message.session)
        if member is not None:
            self._forget(member)
            log.info('worker %d has left', member.place)
        return self._reply(message, Kind.GOODBYE)

    def _forget(self, member: Member) -> None:
        self.model.records.pop(member.place, None)

    def _heartbeat(self, message: Message, now: float) -> None:
        """That it came is all."""

    def _losses(self, message: Message, now: float) -> None:
        if self.membership.get(message.session) is not None:
            values = sections.from_bytes(message.body, torch.float64).tolist()
            self.observer.losses(message.place, values)

    def _statistics(self, message: Message, now: float) -> None:
        member = self.membership.get(message.session)
        if member is None:
            return
        values = sections.from_bytes(message.body, torch.float32)
        if len(values) != self.statistics.numel:
            raise ProtocolError(f'{len(values)} statistics, expected {self.statistics.numel}')
        # A mask of -inf, say, is the same everywhere; a mean that has overflowed is worth nothing.
        usable = values.isfinite()
        self._reported[member.place] = torch.where(usable, values, self.statistics.read())


def check(course: Course) -> None:
    """Raise ValueError for numbers that nothing can be trained with."""
    if not 1 <= course.places <= protocol.MOST_PLACES:
        raise ValueError(
            f'a server has 1 to {protocol.MOST_PLACES} workers, got {course.places}: '
            'set configs.server.workers'
        )
    if course.updates < 1 or course.steps_per_epoch < 1:
        raise ValueError(f'there is nothing to train: {course}')
