"""The worker's side of DGS: an optimizer whose step pushes an update and pulls an answer."""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.buckets import Bucket
from dgc.codec import CodecError
from dgc.engines.local import LocalEngine
from dgc.exchanges.base import Exchanged
from dgc.nonfinite import NonFiniteGradientError, finite, not_finite
from dgc.parameter_server import protocol
from dgc.parameter_server.composition import Asynchronous
from dgc.parameter_server.limited import LimitedLog
from dgc.parameter_server.model import FloatBuffers, agreement_digests, apply_answer, flatten
from dgc.parameter_server.proportion import IN_A_ROW
from dgc.parameter_server.protocol import (
    BUDGET,
    FLOAT32,
    MAX_LOSSES,
    Budget,
    Kind,
    Message,
    ProtocolError,
)
from dgc.parameter_server.settings import ServerError
from dgc.progress import Progress
from dgc.sources import check_trained
from dgc.sparse import difference
from dgc.wiring import Named, allocate, pairs
from dgc.wrapper import Uncopied

RESTART = 'end the server, and begin with a new one and new workers'  # the remedy
LEAVE_TIMEOUT = 10.0  # seconds that a worker waits for the reply to its LEAVE


class Link(ABC):
    """Carries a worker's messages to its server.

    Attributes:
        session: Number of this worker process, drawn at random.
        patience: Seconds without a server, or without a free slot, before a worker gives up.
    """

    def __init__(self, patience: float = 120.0) -> None:
        self.session = secrets.randbits(63) + 1
        self.patience = patience

    def open(self, max_message_bytes: int) -> None:
        """Connect, for messages of at most ``max_message_bytes``."""

    @abstractmethod
    def request(self, message: Message) -> Message:
        """Send ``message`` and return its reply. Raises ServerError where none arrives."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message that has no reply and may be lost."""

    def pause(self) -> None:
        """Wait before a request is made again."""

    def close(self) -> None:
        """Disconnect."""


class WorkerOptimizer(Uncopied):
    """SGD on a model that a parameter server holds.

        link = SocketLink(Address('127.0.0.1', 5555))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        named, buffers = model.named_parameters(), model.buffers()
        optimizer = WorkerOptimizer(sgd, named, buffers, dual_way(), link)
        while not optimizer.finished:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        optimizer.close()

    A step computes g ← lr·(gradient + λ·w), accumulates it in the memory, sends the selected part
    and adds the server's answer to the parameters, or replaces them where the answer is dense. With
    the composition's ``rate_when_sent``, g has no lr, and lr times the selected part is sent.
    The learning rates in ``param_groups`` are those of one update: they are divided by nothing.
    Construction joins the server, which overwrites parameters and buffers.

    Args:
        settings: An SGD, never stepped; lr, momentum, nesterov and weight_decay of its groups
            count.
        named_parameters: Of the whole model.
        buffers: Of the whole model.
        composition: The parts of asynchronous training.
        link: The connection to the server.
        configuration: Any text, which must equal the server's.

    Attributes:
        budget: Number of workers and updates, as the server has it.
        slot: Index of this worker among ``budget.worker_slots``.
        plan: Which parameters share a bucket.
        version: Updates that the server's model included at its last answer.

    Raises:
        ValueError: For settings with which asynchronous training is impossible.
        ServerError: If the server cannot be reached or refuses this worker.
    """

    _bytes_at_join = 0  # which a WELCOME has behind the model
    _saved_instead = 'the server saves the model; make a new worker to go on from it'

    def __init__(
        self,
        settings: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]],
        buffers: Iterable[Tensor],
        composition: Asynchronous,
        link: Link,
        configuration: str = '',
    ) -> None:
        named = pairs(named_parameters)
        parameters = self._trained(composition, settings, named)
        self._names_of_all = {parameter: name for name, parameter in named}
        self._names = {parameter: name for name, parameter, _ in parameters}  # that are trained
        self.plan = composition.plan(parameters)
        self.buckets = allocate(self.plan.buckets, parameters, composition, LocalEngine())
        super().__init__(settings.param_groups, settings.defaults)
        self.param_groups = settings.param_groups
        self.composition = composition
        self.progress = Progress()
        self.slot, self.version, self.budget = 0, 0, Budget(1, 1, 1)
        self.flats = flatten(self.buckets)
        self._statistics = FloatBuffers(buffers)
        self._link = link
        self._log = LimitedLog(__name__)
        self._sequence, self._updates, self._ticket = 0, 0, 0  # of requests; of updates
        self._server_finished, self._server_lost = False, False
        self._declined = 0  # updates in a row
        rates = {group['lr'] for group in settings.param_groups}
        if composition.rate_when_sent and len(rates) > 1:
            raise ValueError(
                f'rate_when_sent needs one learning rate, and groups have {sorted(rates)}: make '
                'them equal, or leave it out'
            )
        self._full_rate = float(settings.param_groups[0]['lr'])
        self._local = LocalEngine()  # for clipping by a norm: a worker's update has one rank
        digests = agreement_digests(named, self._statistics.numel, configuration, self._agreement())
        self._digests = b''.join(digests.values())
        numels = [bucket.numel for bucket in self.buckets]
        try:
            link.open(protocol.max_message_bytes(numels, self._statistics.numel, len(digests)))
            self._join()
        except BaseException:  # the caller gets no optimizer whose close() would do it
            link.close()
            raise

    def _trained(
        self, composition: Asynchronous, settings: Optimizer, named: list[tuple[str, Parameter]]
    ) -> list[Named]:
        """Return the parameters that are trained."""
        return composition.trained(settings, named)

    def _agreement(self) -> str:
        """Return what a server must have in common of rounds of local steps; '' for none."""
        return ''

    @property
    def finished(self) -> bool:
        """Whether all updates have been made, by all workers together."""
        return self._server_finished or self.version >= self.budget.updates

    @property
    def steps(self) -> int:
        """Steps of one worker that the server's progress amounts to, which learning rates and
        densities follow."""
        return self.version // self.budget.worker_slots

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push an update and pull what has changed; returns the closure's loss.

        Raises:
            NonFiniteGradientError: If a gradient holds a NaN or infinity; nothing is sent.
            RuntimeError: If other parameters are trained than at construction; nothing is sent.
            ServerError: If the server is gone for longer than ``patience``.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.finished:
            return loss
        start = time.perf_counter()
        check_trained(self, self._names, self._names_of_all, RESTART)
        self._compute_updates()
        update = b''.join(map(self._compress, self.buckets))
        self.progress.compress += time.perf_counter() - start
        self._push(update)
        self._count_step()
        self.progress.wait += time.perf_counter() - start
        return loss

    def _count_step(self) -> None:
        """Count a step, and report the statistics from time to time."""
        self.progress.steps += 1
        if self.progress.steps % self.composition.statistics_period == 0:
            self._report_statistics()

    def report_losses(self, losses: Iterable[float]) -> None:
        """Send the server the training losses of the last steps."""
        for values in torch.tensor(list(losses), dtype=torch.float64).split(MAX_LOSSES):
            self._send(Kind.LOSSES, protocol.tensor_to_bytes(values))

    def close(self) -> None:
        """Report the statistics, free the slot and disconnect."""
        self._link.patience = min(self._link.patience, LEAVE_TIMEOUT)
        try:
            if not self._server_lost:
                self._report_statistics()
                self._request(Kind.LEAVE)
        except ServerError as error:
            self._log.info('the server did not confirm that this worker has left: %s', error)
        finally:
            self._link.close()

    def _compute_updates(self) -> None:
        """Replace every gradient by the update ``lr·(gradient + λ·w)``, in place; zeros where a
        parameter has none, as torch leaves it alone. See ``Asynchronous.rate_when_sent``."""
        for bucket in self.buckets:
            for member in bucket.members:
                bucket.collect(member)
        bad = [name for b in self.buckets if not finite(*b.pieces) for name in not_finite(b)]
        if bad:
            raise NonFiniteGradientError(
                f'worker {self.slot}: not finite: gradient of {", ".join(bad)}'
            )
        if self.composition.clipping is not None:
            self.composition.clipping.clip(self.buckets, self._local)
        for bucket in self.buckets:
            for member, (_, gradient) in zip(bucket.members, bucket.gradients(), strict=True):
                is_used = member.name not in bucket.unused
                decay = member.group.get('weight_decay', 0.0) if is_used else 0.0
                gradient.add_(member.parameter, alpha=decay)
                if not self.composition.rate_when_sent:
                    gradient.mul_(member.group['lr'])

    def _compress(self, bucket: Bucket) -> bytes:
        """Select and encode one bucket's part of the update; the memory keeps the rest."""
        composition, memory = self.composition, self.composition.memory
        rate = float(self.param_groups[0]['lr'])
        compressor = composition.upload_compressor(
            bucket, self.steps, self.budget.steps_per_epoch, rate / (self._full_rate or 1.0)
        )
        selected = memory.select(bucket, compressor)
        factor = rate if composition.rate_when_sent else 1.0
        update = selected if factor == 1 else selected._replace(values=selected.values * factor)
        section = protocol.encode_section(update, composition.codec, bucket.next_seed())
        error = None
        if not selected.is_dense and factor:
            # The quantization error: selected minus what the server will decode.
            (delivered,) = protocol.decode_sections(section, [bucket.numel], composition.codec)
            values = delivered.values.to(selected.values.device)
            error = difference(update, update._replace(values=values))
            error = error._replace(values=error.values / factor)
        memory.update(bucket, selected, Exchanged([selected], error), bucket.pieces)
        self.progress.sent_elements += selected.values.numel()
        self.progress.elements += bucket.numel
        self.progress.dense_sent += FLOAT32 * bucket.numel
        return section

    def _push(self, update: bytes) -> None:
        """Send an update and apply its answer, or learn that all updates have been made."""
        start = time.perf_counter()
        self._updates += 1
        while not self.finished:
            reply = self._request(Kind.PUSH, update)
            if reply.kind in (Kind.ANSWER, Kind.PENDING):
                if reply.kind is Kind.ANSWER:
                    self._apply(reply.body)
                self.version = reply.version
                self._declined = 0
                break
            if reply.kind is Kind.DECLINED:
                self._accept_refusal(reply)
                break
            if reply.kind is not Kind.REJOIN:
                self._server_finished = True
                break
            # The same update is pushed again afterwards; the server skips it if it was applied.
            self._join()
        self.progress.communicate += time.perf_counter() - start

    def _accept_refusal(self, reply: Message) -> None:
        """Go on without an update that the server has refused, and with an empty memory.

        The update is dropped, since it would be refused again. The memory is emptied, since it
        holds the unsent part of the same gradients, and their momentum.
        """
        self._declined += 1
        try:
            reason, sections = protocol.split_declined(reply.body)
        except ProtocolError as error:
            raise ServerError(f'the server sent an invalid answer: {error}') from error
        self._apply(sections)
        self.version = reply.version
        self._log.warning(
            'update %d of this worker is refused and dropped: %s; its memory, of norm %.3g, is '
            'emptied',
            self._updates,
            reason,
            math.hypot(*(bucket.state.reset('memory') for bucket in self.buckets)),
        )
        if self._declined >= IN_A_ROW:
            raise ServerError(
                f'the server has refused {self._declined} updates of this worker in a row, the '
                f'last one as {reason}: lower the learning rate, or set '
                'configs.server.max_norm_ratio higher'
            )

    def _join(self) -> None:
        """Get a slot and the model, as soon as a slot is free."""
        begin = time.monotonic()
        while (reply := self._request(Kind.JOIN, self._digests)).kind is Kind.FULL:
            waited = time.monotonic() - begin
            if waited > self._link.patience:
                raise ServerError(
                    f'all worker slots of the server have been taken for {waited:.0f} s '
                    '(configs.server.patience): start it with more configs.server.workers'
                )
            self._link.pause()
        if reply.kind is not Kind.WELCOME:
            self._server_finished = True
            return
        self.slot, self.version, self._ticket = reply.slot, reply.version, reply.ticket
        last = len(reply.body) - self._bytes_at_join
        end = last - FLOAT32 * self._statistics.numel
        if end < BUDGET.size:
            raise ServerError(f'the server sent a model of {len(reply.body)} bytes')
        self.budget = Budget.decode(reply.body)
        self._begin(reply.body[BUDGET.size : end], reply.body[last:])
        self._statistics.write(protocol.tensor_from_bytes(reply.body[end:last], torch.float32))

    def _begin(self, model: bytes | memoryview, own: bytes | memoryview) -> None:
        """Take over the server's model; ``own`` has ``_bytes_at_join`` bytes."""
        self._apply(model)

    def _apply(self, body: bytes | memoryview) -> None:
        """Apply the sections of an answer, or of a whole model, to the parameters."""
        self._apply_to(self.flats, body)

    def _apply_to(self, flats: Sequence[Tensor], body: bytes | memoryview) -> None:
        """Apply sections to ``flats``, of which there is one for each."""
        numels = [len(values) for values in flats]
        try:
            parts = protocol.decode_sections(body, numels, self.composition.codec)
        except (ProtocolError, CodecError) as error:
            raise ServerError(f'the server sent an invalid answer: {error}') from error
        for values, part in zip(flats, parts, strict=True):
            apply_answer(values, part)

    def _report_statistics(self) -> None:
        self._send(Kind.STATISTICS, protocol.tensor_to_bytes(self._statistics.read()))

    def _request(self, kind: Kind, body: bytes = b'') -> Message:
        self._sequence += 1
        self.progress.sent += protocol.HEADER.size + len(body)
        try:
            reply = self._link.request(self._message(kind, body))
        except ServerError:
            self._server_lost = True
            raise
        self.progress.received += protocol.HEADER.size + len(reply.body)
        return reply

    def _send(self, kind: Kind, body: bytes) -> None:
        self.progress.sent += protocol.HEADER.size + len(body)
        self._link.send(self._message(kind, body))

    def _message(self, kind: Kind, body: bytes) -> Message:
        update = self._updates if kind is Kind.PUSH else 0
        fields = (self._link.session, self._sequence, self.slot, self._ticket)
        return Message(kind, *fields, self.version, update, body)
