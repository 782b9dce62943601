"""The worker's side of DGS: an optimizer whose step pushes an update and pulls an answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
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
from dgc.parameter_server import flat, protocol, sections
from dgc.parameter_server.composition import Asynchronous
from dgc.parameter_server.errors import ServerError
from dgc.parameter_server.link import Link
from dgc.parameter_server.protocol import Kind, Message, ProtocolError
from dgc.parameter_server.server import Course
from dgc.planner import Plan
from dgc.reducer import Progress
from dgc.sparse import difference

log = logging.getLogger(__name__)
FAREWELL = 10.0  # seconds that a worker waits for its good-bye


class WorkerOptimizer(Optimizer):
    """SGD on a model that a parameter server keeps.

        link = SocketLink(Address('127.0.0.1', 5555))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        named, buffers = model.named_parameters(), model.buffers()
        optimizer = WorkerOptimizer(sgd, named, buffers, dual_way(), link)
        while not optimizer.finished:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        optimizer.close()

    A step is: g ← lr·(gradient + λ·w), into the memory; the chosen part is sent; the answer is
    added to the parameters, or replaces them where it is dense. Learning rates in ``param_groups``
    are one update's: they are not divided by anything. At construction it joins, which overwrites
    parameters and buffers.

    settings: an SGD, never stepped; its groups' lr, momentum, nesterov and weight_decay count.
    named_parameters, buffers: of the whole model.
    configuration: any text that must be the server's.

    course: as the server has it. place: the number of this worker among ``course.places``.
    plan: which parameters travel together.
    version: updates that the server's model had taken in at its last answer.

    Raises ValueError for settings that do not fit, ServerError where the server refuses.
    """

    def __init__(
        self,
        settings: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]],
        buffers: Iterable[Tensor],
        composition: Asynchronous,
        link: Link,
        configuration: str = '',
    ) -> None:
        named = list(named_parameters)
        self.buckets = composition.plan(settings, named, composition.memory.buffers)
        self.plan = Plan.of(self.buckets, composition.rules, composition.schedule)
        super().__init__(settings.param_groups, settings.defaults)
        self.param_groups = settings.param_groups
        self.composition = composition
        self.progress = Progress()
        self.place, self.version, self.course = 0, 0, Course(1, 1, 1)
        self.over = False
        self.flats = flat.flatten(self.buckets)
        self._statistics = flat.Statistics(buffers)
        self._link = link
        self._sequence = 0  # of requests
        self._updates, self._ticket = 0, 0
        self._lost = False  # the server, or its good will
        self._alone = LocalEngine()  # for clipping: an update is applied by itself
        digests = flat.aspects(named, self._statistics.numel, configuration)
        self._digests = b''.join(digests.values())
        numels = [bucket.numel for bucket in self.buckets]
        try:
            link.open(sections.most_bytes(numels, self._statistics.numel, len(digests)))
            self._join()
        except BaseException:  # nobody else will close it
            link.close()
            raise

    @property
    def finished(self) -> bool:
        """Whether all updates have been made, by whomever."""
        return self.over or self.version >= self.course.updates

    @property
    def steps(self) -> int:
        """Steps of one worker that the progress of the server amounts to: what learning rates and
        compress ratios follow."""
        return self.version // self.course.places

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push an update and pull what has changed; returns the closure's loss.

        Raises NonFiniteGradientError, and sends nothing, where a gradient holds a NaN or infinity.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.finished:
            return loss
        start = time.perf_counter()
        self._gather()
        update = b''.join(map(self._section, self.buckets))
        self.progress.steps += 1
        self.progress.compress += time.perf_counter() - start
        self._push(update)
        if self.progress.steps % self.composition.statistics_period == 0:
            self._report_statistics()
        self.progress.wait += time.perf_counter() - start
        return loss

    def report_losses(self, losses: Iterable[float]) -> None:
        """Tell the server the training losses of the last steps."""
        values = torch.tensor(list(losses), dtype=torch.float64)
        self._tell(Kind.LOSSES, sections.to_bytes(values))

    def close(self) -> None:
        """Leave: what was reported has arrived, and the place is free."""
        self._link.patience = min(self._link.patience, FAREWELL)
        try:
            if not self._lost:
                self._report_statistics()
                self._request(Kind.LEAVE)
        except ServerError as error:
            log.info('left without a good-bye: %s', error)
        finally:
            self._link.close()

    def _gather(self) -> None:
        """Every bucket's gradient becomes ``lr·(gradient + λ·w)``."""
        for bucket in self.buckets:
            for member in bucket.members:
                bucket.collect(member)
        bad = [name for b in self.buckets if not finite(*b.pieces) for name in not_finite(b)]
        if bad:
            raise NonFiniteGradientError(
                f'worker {self.place}: not finite: gradient of {", ".join(bad)}'
            )
        if self.composition.clipping is not None:
            self.composition.clipping.clip(self.buckets, self._alone)
        for bucket in self.buckets:
            for member, (_, gradient) in zip(bucket.members, bucket.gradients(), strict=True):
                decay = member.group.get('weight_decay', 0.0)
                gradient.add_(member.parameter, alpha=decay).mul_(member.group['lr'])

    def _section(self, bucket: Bucket) -> bytes:
        """One bucket's section of an update; what it does not deliver stays in the memory."""
        composition, memory = self.composition, self.composition.memory
        chooses = composition.up(bucket, self.steps, self.course.steps_per_epoch)
        selected = memory.select(bucket, chooses)
        section = sections.write(selected, composition.codec)
        (delivered,) = sections.read(section, [bucket.numel], composition.codec)
        left_out = None
        if not selected.is_dense:
            at_home = delivered._replace(
                values=delivered.values.to(selected.values.device), indices=selected.indices
            )
            left_out = difference(selected, at_home)
        memory.settle(bucket, selected, Exchanged([selected], left_out))
        self.progress.kept += selected.values.numel()
        self.progress.numel += bucket.numel
        self.progress.dense_sent += sections.FLOAT32 * bucket.numel
        return section

    def _push(self, update: bytes) -> None:
        """Until the server has answered this update, or has no use for it any more."""
        start = time.perf_counter()
        self._updates += 1
        while not self.finished:
            reply = self._request(Kind.PUSH, update)
            if reply.kind is Kind.ANSWER:
                self._follow(reply.body)
                self.version = reply.version
                break
            if reply.kind is not Kind.REJOIN:
                self.over = True
                break
            self._join()  # then it is pushed again, in case it was not taken in
        self.progress.communicate += time.perf_counter() - start

    def _join(self) -> None:
        """Get the model, as soon as a place is free."""
        begin = time.monotonic()
        while (reply := self._request(Kind.JOIN, self._digests)).kind is Kind.FULL:
            waited = time.monotonic() - begin
            if waited > self._link.patience:
                raise ServerError(
                    f'all places at the server are taken, for {waited:.0f} s now '
                    '(configs.server.patience): start it with more configs.server.workers'
                )
            self._link.pause()
        if reply.kind is not Kind.WELCOME:
            self.over = True
            return
        self.place, self.version, self._ticket = reply.place, reply.version, reply.ticket
        first = protocol.WELCOME_NUMBERS.size
        last = len(reply.body) - sections.FLOAT32 * self._statistics.numel
        if last < first:
            raise ServerError(f'the server hands over a model of {len(reply.body)} bytes')
        places, updates, steps_per_epoch = protocol.WELCOME_NUMBERS.unpack_from(reply.body)
        self.course = Course(max(places, 1), max(steps_per_epoch, 1), updates)
        self._follow(reply.body[first:last])
        self._statistics.write(sections.from_bytes(reply.body[last:], torch.float32))

    def _follow(self, body: bytes | memoryview) -> None:
        """Take in the sections of an answer, or of a whole model."""
        numels = [bucket.numel for bucket in self.buckets]
        try:
            parts = sections.read(body, numels, self.composition.codec)
        except (ProtocolError, CodecError) as error:
            raise ServerError(f'the server sends what makes no sense: {error}') from error
        for values, part in zip(self.flats, parts, strict=True):
            flat.follow(values, part)

    def _report_statistics(self) -> None:
        self._tell(Kind.STATISTICS, sections.to_bytes(self._statistics.read()))

    def _request(self, kind: Kind, body: bytes = b'') -> Message:
        self._sequence += 1
        self.progress.sent += protocol.HEADER.size + len(body)
        try:
            reply = self._link.request(self._message(kind, body))
        except ServerError:
            self._lost = True
            raise
        self.progress.received += protocol.HEADER.size + len(reply.body)
        return reply

    def _tell(self, kind: Kind, body: bytes) -> None:
        self.progress.sent += protocol.HEADER.size + len(body)
        self._link.tell(self._message(kind, body))

    def _message(self, kind: Kind, body: bytes) -> Message:
        update = self._updates if kind is Kind.PUSH else 0
        who = (self._link.session, self._sequence, self.place, self._ticket)
        return Message(kind, *who, self.version, update, body)
