"""The server's state machine: a message and a time in, a reply out.

It has no socket and no clock, so that tests run any interleaving in one process (sockets.py
connects it to the network).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.buckets import Bucket
from dgc.codec import CodecError
from dgc.parameter_server import protocol
from dgc.parameter_server.composition import Asynchronous
from dgc.parameter_server.journal import Entry, Update
from dgc.parameter_server.limited import LimitedLog
from dgc.parameter_server.model import FloatBuffers, Model, agreement_digests
from dgc.parameter_server.proportion import Proportion
from dgc.parameter_server.protocol import (
    DIGEST,
    MAX_LOSSES,
    Budget,
    Kind,
    Message,
    ProtocolError,
)
from dgc.sparse import Sparse
from dgc.wiring import Named, pairs


class Pushed(NamedTuple):
    """A PUSH as it is decoded.

    Attributes:
        parts: What it has of each bucket.
        fragment: Of local steps; else 0.
        samples: That its movement was trained on; else 1.
        base: The round from whose parameters it moved; else 0.
    """

    parts: list[Sparse]
    fragment: int = 0
    samples: int = 1
    base: int = 0


class Traffic(NamedTuple):
    """Bytes that the server has received and sent, and elements in what it has sent."""

    received: int = 0
    sent: int = 0
    elements: int = 0


class Observer:
    """Callbacks of the server, called in the order of the events. The base class ignores them."""

    def accepted(self, entry: Entry) -> None:
        """An update was applied, and is acknowledged when this returns: the place of a journal."""

    def updated(self, update: Update) -> None:
        """An update was applied."""

    def losses(self, slot: int, values: list[float]) -> None:
        """A worker reported the training losses of its last steps."""


@dataclass
class ConnectedWorker:
    """What the server stores about a worker that holds a slot.

    Attributes:
        session: The worker process.
        slot: Its index among the workers that train at the same time.
        last_seen: Seconds of the server's clock when its last message arrived.
        sequence: Number of its last request.
        reply: The reply to that request, to be sent again if the request is repeated.
        base: Version of the model in that reply, which the worker's next update is computed on.
        ticket: Drawn when its record was last set to the model.
        rounds: Of local steps, the number of each fragment's open round when the worker got the
            fragment.
    """

    session: int
    slot: int
    last_seen: float
    sequence: int = 0
    reply: bytes = b''
    base: int = 0
    ticket: int = 0
    rounds: list[int] = field(default_factory=list)


class WorkerSlots:
    """A fixed number of slots, each held by at most one live worker."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._workers: dict[int, ConnectedWorker] = {}  # by session

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[ConnectedWorker]:
        return iter(tuple(self._workers.values()))

    def get(self, session: int) -> ConnectedWorker | None:
        """Return the worker with this session, if it holds a slot."""
        return self._workers.get(session)

    def assign(self, session: int, now: float) -> ConnectedWorker | None:
        """Give ``session`` the slot that it holds already or the lowest free one; None if full."""
        if session not in self._workers:
            taken = {worker.slot for worker in self}
            free = next((slot for slot in range(self.count) if slot not in taken), None)
            if free is None:
                return None
            self._workers[session] = ConnectedWorker(session, free, now)
        return self._workers[session]

    def release(self, session: int) -> None:
        """Free the slot of ``session``."""
        del self._workers[session]


class Server:
    """The parameter server of asynchronous training, as a state machine over messages.

    Args:
        settings: An SGD over the model's parameters with the workers' settings; never stepped.
        named_parameters: Of the whole model, which the server updates from now on.
        buffers: Of the whole model.
        composition: The parts of asynchronous training.
        budget: Number of workers and updates.
        configuration: Any text, which must equal the workers'.
        observer: Callbacks.
        timeout: Seconds without a message or heartbeat after which a worker's slot is freed.
        max_norm_ratio: An update is refused whose norm is more than this many times the median of
            the accepted ones before it; None accepts every finite update.

    Attributes:
        model: θ and the records θ_w.
        version: Updates that θ includes.
        workers: The workers that hold a slot.

    Raises:
        ValueError: For a budget or settings with which asynchronous training is impossible.
    """

    def __init__(
        self,
        settings: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]],
        buffers: Iterable[Tensor],
        composition: Asynchronous,
        budget: Budget,
        configuration: str = '',
        observer: Observer | None = None,
        timeout: float = 20.0,
        max_norm_ratio: float | None = None,
    ) -> None:
        budget.check()
        named = pairs(named_parameters)
        self.composition = composition
        self.budget = budget
        self.observer = observer or Observer()
        self.timeout = timeout
        self._log = LimitedLog(__name__)
        self.version = 0
        self.workers = WorkerSlots(budget.worker_slots)
        parameters = self._trained(settings, named)
        live = {name: (parameter, group) for name, parameter, group in parameters}
        buckets = [
            Bucket(spec, [live[name] for name in spec.names])  # no memory on the server
            for spec in composition.plan(parameters).buckets
        ]
        self.model = Model(buckets, composition)
        self.statistics = FloatBuffers(buffers)
        self._digests = agreement_digests(
            named, self.statistics.numel, configuration, self._agreement()
        )
        self._reported: dict[int, Tensor] = {}  # slot → its worker's last statistics
        self._applied: dict[int, int] = {}  # session → number of its last applied update
        self._proportion = Proportion(max_norm_ratio)

    def _trained(self, settings: Optimizer, named: list[tuple[str, Parameter]]) -> list[Named]:
        """Return the parameters that are trained."""
        return self.composition.trained(settings, named)

    def _agreement(self) -> str:
        """Return what workers must have in common of rounds of local steps; '' for none."""
        return ''

    @property
    def models_held(self) -> int:
        """How many times the parameters' bytes the server holds at most: θ and a scratch buffer,
        and for each worker the record and the last answer."""
        return 2 + 2 * self.budget.worker_slots

    @property
    def max_message_bytes(self) -> int:
        """An upper bound of the length of every message from and to workers."""
        return protocol.max_message_bytes(
            self.model.numels, self.statistics.numel, len(self._digests)
        )

    @property
    def finished(self) -> bool:
        """Whether all updates have been made."""
        return self.version >= self.budget.updates

    @property
    def drained(self) -> bool:
        """Whether all updates have been made and no worker holds a slot any more."""
        return self.finished and not len(self.workers)

    def handle(self, frame: bytes | memoryview, now: float, sender: str = '') -> bytes | None:
        """Process one message.

        Args:
            frame: The message as it arrived. An invalid one is logged, refused and changes nothing.
            now: Seconds of a clock that never goes back.
            sender: The peer's address, for the log.

        Returns:
            The reply, or None where the message has none.
        """
        message = None
        try:
            message = protocol.decode(frame, protocol.FROM_WORKER)
            worker = self.workers.get(message.session)
            if worker is not None:
                worker.last_seen = now
            if message.kind is Kind.JOIN:
                return self._join(message, now)
            if message.kind is Kind.PUSH:
                return self._push(message, worker)
            if message.kind is Kind.PULL:
                return self._pull(message, worker)
            if message.kind is Kind.HELLO:
                return self._plain_reply(message, Kind.REJOIN if worker is None else Kind.KNOWN)
            if message.kind is Kind.LEAVE:
                if worker is not None:
                    self._release(worker)
                    self._log.info('worker %d has left', worker.slot)
                return self._plain_reply(message, Kind.LEFT)
            if worker is not None:
                self._report(message, worker)
            return None
        except (ProtocolError, CodecError) as error:
            self._log.warning('refused a message from %s: %s', sender or 'a worker', error)
            if message is not None and message.kind in protocol.WITHOUT_REPLY:
                return None  # the worker would take it for the reply to its next request
            return protocol.refusal(message, str(error)).encode()

    def tick(self, now: float) -> None:
        """Free the slots of workers that have been silent for longer than ``timeout``."""
        for worker in self.workers:
            if worker.last_seen < now - self.timeout:
                self._release(worker)
                self._log.warning('worker %d timed out: its slot is free', worker.slot)

    def extend_deadlines(self, seconds: float) -> None:
        """Discount a time in which the server read no messages, so that no worker times out."""
        for worker in self.workers:
            worker.last_seen += seconds

    def average(self) -> Tensor:
        """Return BatchNorm's statistics, float32 ``[m]``: the mean of the slots' last reports."""
        reports = list(self._reported.values())
        return torch.stack(reports).mean(0) if reports else self.statistics.read()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that another server process needs to continue.

        The records θ_w are not saved: after a restart every worker joins again and gets all of θ.
        """
        return {
            'version': self.version,
            'parameters': {name: view.clone() for name, view in self.model.parameters()},
            'statistics': self.average(),
            'applied': dict(self._applied),
            'norms': self._proportion.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict()``. Raises ValueError where it is that of another model."""
        saved = state['parameters']
        for name, view in self.model.parameters():
            if name not in saved or saved[name].shape != view.shape:
                raise ValueError(f'the checkpoint has no {name} of shape {tuple(view.shape)}')
            view.copy_(saved[name])
        if len(state['statistics']) != self.statistics.numel:
            raise ValueError('the checkpoint has buffers of another model')
        self.statistics.write(state['statistics'])
        self.version = int(state['version'])
        self._applied = dict(state['applied'])
        self._proportion.load(state.get('norms', ()))  # which earlier versions do not have
        self._reported = {}

    def replay(self, entry: Entry) -> None:
        """Apply an update that a journal holds.

        Raises:
            ValueError: If it does not follow the last one, or is of another model.
        """
        if entry.update.version != self.version + 1:
            raise ValueError(f'update {entry.update.version} does not follow {self.version}')
        update = self._decode(self._restored(entry.body))
        self._objection(update)  # counts its norm
        self._apply(update, entry.update.staleness, entry.session, entry.number)
        self.observer.updated(entry.update)

    def _join(self, message: Message, now: float) -> bytes | None:
        """Give a worker a slot, and all of θ."""
        if len(message.body) != DIGEST * len(self._digests):
            raise ProtocolError('the worker was started with another version of this program')
        for number, (aspect, digest) in enumerate(self._digests.items()):
            if message.body[number * DIGEST : (number + 1) * DIGEST] != digest:
                raise ProtocolError(
                    f'the worker and the server differ in {aspect}: start both with the same code, '
                    'configuration and command line'
                )
        if self.finished:
            return self._plain_reply(message, Kind.FINISHED)
        worker = self.workers.assign(message.session, now)
        if worker is None:
            return self._plain_reply(message, Kind.FULL)
        if message.sequence <= worker.sequence:
            return self._repeated_reply(message, worker)
        # A copy of an older PUSH that arrives from now on has another ticket than the new record.
        worker.ticket = secrets.randbits(64)
        self._log.info('worker %d begins at update %d', worker.slot, self.version)
        statistics = protocol.tensor_to_bytes(self.average())
        body = self.budget.encode() + self.model.start_record(worker.slot) + statistics
        return self._stored_reply(message, worker, Kind.WELCOME, body + self._begin(worker))

    def _begin(self, worker: ConnectedWorker) -> bytes:
        """Note that a worker's record is θ now; returns what a WELCOME ends with."""
        return b''

    def _push(self, message: Message, worker: ConnectedWorker | None) -> bytes | None:
        """Apply an update to θ, at most once, and answer it."""
        if worker is not None and message.sequence <= worker.sequence:
            return self._repeated_reply(message, worker)
        if worker is None or message.ticket != worker.ticket:
            return self._plain_reply(message, Kind.REJOIN)
        if message.update <= self._applied.get(message.session, 0):
            # Applied before a restart or a timeout, which lost the answer but not the update.
            body, _ = self._changed(worker, self._decode(message.body).fragment)
            return self._stored_reply(message, worker, Kind.ANSWER, body)
        if self.finished:
            return self._plain_reply(message, Kind.FINISHED)
        update = self._decode(message.body)
        if objection := self._objection(update):
            self._log.warning('refused an update of worker %d: %s', worker.slot, objection)
            return self._decline(message, worker, update, objection)
        staleness = self._staleness(worker, update)
        stored = self._to_restore(message.body)
        self._apply(update, staleness, message.session, message.update)
        body, downloaded = self._answer(worker, update.fragment)
        reply = self._stored_reply(message, worker, Kind.ANSWER if body else Kind.PENDING, body)
        pulled = self._pulled()
        elements = sum(len(part.values) for part in update.parts) + downloaded + pulled.elements
        received = protocol.HEADER.size + len(message.body) + pulled.received
        sent = len(reply) + pulled.sent
        record = Update(self.version, worker.slot, staleness, received, sent, elements)
        self.observer.accepted(Entry(message.session, message.update, record, stored))
        self.observer.updated(record)
        return reply

    def _pulled(self) -> Traffic:
        """Return what has been sent between the last two updates, which counts with the second."""
        return Traffic()

    def _pull(self, message: Message, worker: ConnectedWorker | None) -> bytes | None:
        """Refuse a request that is for rounds of local steps."""
        raise ProtocolError('the server has no rounds of local steps')

    def _decode(self, body: bytes | memoryview) -> Pushed:
        """Decode an update. Raises ProtocolError or CodecError for an invalid one."""
        return Pushed(self._sections(body, self.model.numels))

    def _sections(self, body: bytes | memoryview, numels: Sequence[int]) -> list[Sparse]:
        """Decode the sections of buckets of so many elements, which must be finite."""
        parts = protocol.decode_sections(body, numels, self.composition.codec)
        if not all(bool(part.values.isfinite().all()) for part in parts):
            raise ProtocolError('an update holds an infinity or a NaN')
        return parts

    def _objection(self, update: Pushed) -> str:
        """Return why an update is refused; '' where it is accepted."""
        return self._proportion.objection(update.parts)

    def _staleness(self, worker: ConnectedWorker, update: Pushed) -> int:
        """Return how much older than θ the model is that an update was computed on."""
        return self.version - worker.base

    def _to_restore(self, body: bytes | memoryview) -> bytes | memoryview:
        """Return what a journal holds of an update."""
        return body

    def _restored(self, body: bytes | memoryview) -> bytes | memoryview:
        """Return the body of the update of which a journal holds ``body``."""
        return body

    def _apply(self, update: Pushed, staleness: int, session: int, number: int) -> None:
        """Apply an update to θ, and record that it is."""
        self.model.apply_update(update.parts, self.composition.scaling.factor(staleness))
        self._count(session, number)

    def _count(self, session: int, number: int) -> None:
        """Record that an update is applied."""
        self.version += 1
        self._applied[session] = number

    def _decline(
        self, message: Message, worker: ConnectedWorker, update: Pushed, objection: str
    ) -> bytes:
        """Answer an update that is not applied: what has changed, and the reason before it."""
        reason = objection.encode()[: protocol.MAX_TEXT]
        body, _ = self._changed(worker, update.fragment)
        body = protocol.TEXT_LENGTH.pack(len(reason)) + reason + body
        return self._stored_reply(message, worker, Kind.DECLINED, body)

    def _answer(self, worker: ConnectedWorker, fragment: int) -> tuple[bytes, int]:
        """Return the body of the answer to an update, and the number of elements in it."""
        return self._changed(worker, fragment)

    def _changed(self, worker: ConnectedWorker, fragment: int) -> tuple[bytes, int]:
        """Select what has changed for a worker, and add it to its record; likewise."""
        step = self.version // self.budget.worker_slots
        return self.model.answer(worker.slot, step, self.budget.steps_per_epoch)

    def _report(self, message: Message, worker: ConnectedWorker) -> None:
        """Process LOSSES and STATISTICS; a HEARTBEAT has no content."""
        if message.kind is Kind.LOSSES:
            count = len(message.body) // torch.float64.itemsize
            if count > MAX_LOSSES:
                raise ProtocolError(f'{count} losses in a message of at most {MAX_LOSSES}')
            losses = protocol.tensor_from_bytes(message.body, torch.float64)
            self.observer.losses(worker.slot, losses.tolist())
        if message.kind is Kind.STATISTICS:
            values = protocol.tensor_from_bytes(message.body, torch.float32)
            if len(values) != self.statistics.numel:
                raise ProtocolError(f'{len(values)} statistics, expected {self.statistics.numel}')
            # The server's own value replaces a mean that has overflowed, and equals a constant that
            # is not finite, such as the -inf of an attention mask.
            usable = values.isfinite()
            self._reported[worker.slot] = torch.where(usable, values, self.statistics.read())

    def _release(self, worker: ConnectedWorker) -> None:
        self.workers.release(worker.session)
        self.model.records.pop(worker.slot, None)

    def _plain_reply(self, message: Message, kind: Kind) -> bytes:
        return message.reply(kind, version=self.version).encode()

    def _stored_reply(
        self, message: Message, worker: ConnectedWorker, kind: Kind, body: bytes
    ) -> bytes:
        """Return a reply that changes the worker's record; store it for repeated requests."""
        worker.sequence, worker.base = message.sequence, self.version
        fields = {'slot': worker.slot, 'ticket': worker.ticket}
        worker.reply = message.reply(kind, version=self.version, body=body, **fields).encode()
        return worker.reply

    def _repeated_reply(self, message: Message, worker: ConnectedWorker) -> bytes | None:
        """Return the stored reply to the last request, if repeated; None for an earlier one."""
        return worker.reply if message.sequence == worker.sequence else None
