"""A parameter server and its workers in one process, whose messages are delivered, lost or repeated
as a test says; and a plain reference of the server."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from dgc_helpers import Named, loss, parameters
from torch import Tensor

from dgc.parameter_server import (
    Asynchronous,
    Budget,
    Link,
    Observer,
    Server,
    ServerError,
    Update,
    WorkerOptimizer,
    protocol,
)
from dgc.parameter_server.protocol import Kind, Message

BUFFERS = 6  # of the model, as a BatchNorm's


class Recorder(Observer):
    """Records the server's callbacks."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.losses_seen: list[tuple[int, list[float]]] = []

    def updated(self, update):
        self.updates.append(update)

    def losses(self, slot, values):
        self.losses_seen.append((slot, values))


class World:
    """A server, which may be restarted, and the time.

    Args:
        faults: Draws what happens to a message: 'lost', 'reply lost', 'twice', 'again later', ''.
    """

    def __init__(
        self,
        make: Callable[[], Asynchronous],
        slots: int = 3,
        updates: int = 10_000,
        faults: Callable[[], str] = lambda: '',
        patience: float = 0.0,
        **settings,
    ) -> None:
        self.make, self.faults, self.now, self.patience = make, faults, 0.0, patience
        self.settings = {'lr': 0.1, 'momentum': 0.9, **settings}
        self.budget = Budget(slots, 4, updates)
        self.notes = Recorder()
        self.late: list[bytes] = []  # copies of frames that arrive later
        self.server = self.new_server()

    def new_server(self) -> Server:
        self.named = parameters()
        self.buffers = [torch.zeros(BUFFERS)]
        sgd = torch.optim.SGD([p for _, p in self.named], **self.settings)
        return Server(
            sgd, self.named, self.buffers, self.make(), self.budget, 'test', self.notes, timeout=10
        )

    def restart(self, state: dict) -> None:
        """Replace the server by a new one that continues from a checkpoint."""
        self.server = self.new_server()
        self.server.load_state_dict(state)

    def deliver(self, frame: bytes) -> bytes | None:
        return self.server.handle(frame, self.now)

    def deliver_late(self) -> None:
        """Deliver the delayed copies of messages, and drop the replies."""
        while self.late:
            self.deliver(self.late.pop(0))

    def join(self, **settings) -> Worker:
        return Worker(self, **settings)


class Wire(Link):
    """Delivers messages, with the faults of the world."""

    def __init__(self, world: World) -> None:
        super().__init__(world.patience)
        self.world = world

    def pause(self) -> None:
        """Let silent workers time out."""
        self.world.now += 11
        self.world.server.tick(self.world.now)

    def request(self, message: Message) -> Message:
        frame = message.encode()
        for fault in iter(self.world.faults, None):
            if fault == 'lost':
                continue
            if fault == 'again later':
                self.world.late.append(frame)
            reply = self.world.deliver(frame)
            if fault == 'twice':
                assert self.world.deliver(frame) == reply or reply_kind(reply) is Kind.FULL
            if fault != 'reply lost':
                assert reply is not None
                read = protocol.decode(reply, protocol.FROM_SERVER)
                if read.kind is Kind.REFUSED:
                    raise ServerError(read.text)
                assert (read.session, read.sequence) == (message.session, message.sequence)
                return read
        raise AssertionError('faults never end')

    def send(self, message: Message) -> None:
        if self.world.faults() != 'lost':
            assert self.world.deliver(message.encode()) is None


def reply_kind(reply: bytes) -> Kind:
    return protocol.decode(reply, protocol.FROM_SERVER).kind


class Worker:
    """Parameters that are pulled towards targets, and their optimizer."""

    def __init__(self, world: World, link: Link | None = None, **settings) -> None:
        self.world, self.steps = world, 0
        self.named: Named = [(n, torch.nn.Parameter(p + 1)) for n, p in parameters()]
        self.buffers = [torch.ones(BUFFERS)]
        self.settings = {**world.settings, **settings}
        sgd = torch.optim.SGD([p for _, p in self.named], **self.settings)
        self.optimizer = WorkerOptimizer(
            sgd, self.named, self.buffers, world.make(), link or Wire(world), 'test'
        )

    def step(self, rank: int | None = None) -> None:
        self.optimizer.zero_grad()
        slot = self.optimizer.slot if rank is None else rank
        loss(self.named, slot, self.steps).backward()
        self.steps += 1
        self.optimizer.step()

    @property
    def is_known(self) -> bool:
        """Whether the current server has sent it the model that it began with."""
        member = self.world.server.workers.get(self.optimizer._link.session)
        return member is not None and member.ticket == self.optimizer._ticket

    def assert_recorded(self) -> None:
        """The server's record of this worker is its parameters, bit for bit."""
        records = self.world.server.model.records[self.optimizer.slot]
        for record, values in zip(records, self.optimizer.flats, strict=True):
            assert torch.equal(record, values)
        for (_, parameter), (_, mine) in zip(self.named, self.views(), strict=True):
            assert torch.equal(parameter, mine)

    def views(self) -> list[tuple[str, Tensor]]:
        optimizer = self.optimizer
        found = {
            name: view
            for bucket, values in zip(optimizer.buckets, optimizer.flats, strict=True)
            for name, view in bucket.views(values)
        }
        return [(name, found[name]) for name, _ in self.named]


class Plain:
    """The server of DGS for one bucket, as in the paper: dense vectors, no messages."""

    def __init__(self, model: Tensor) -> None:
        self.model = model.clone()
        self.records: dict[int, Tensor] = {}

    def join(self, worker: int) -> Tensor:
        self.records[worker] = self.model.clone()
        return self.model.clone()

    def push(self, worker: int, update: Tensor, k: int) -> Tensor:
        """Apply ``update[n]``; returns the ``k`` largest differences to the worker's record."""
        self.model = self.model - update
        difference = self.model - self.records[worker]
        answer = torch.zeros_like(difference)
        for index in sorted(range(len(difference)), key=lambda i: -abs(difference[i]))[:k]:
            answer[index] = difference[index]
        self.records[worker] = self.records[worker] + answer
        return answer


def random_faults(draw: random.Random, share: float) -> Callable[[], str]:
    """Draw one of all faults with probability ``share``, else none."""
    kinds: Sequence[str] = ('lost', 'reply lost', 'twice', 'again later')
    return lambda: draw.choice(kinds) if draw.random() < share else ''
