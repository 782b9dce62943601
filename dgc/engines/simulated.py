"""Many workers in one process, in turns: cheap, deterministic, counted, and timed.

Each worker is a thread that runs the very code that trains on real machines. They pass a baton:
one runs at a time, and hands it on only where an engine call has to wait, to whoever has been able
to go on for longest. Each has its own random number state, so that results depend neither on the
machine's scheduling nor on how many others there are.

Each also has a virtual clock, which moves as a network would let it (dgc/costmodel.py), however
long the computer takes.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from dgc.costmodel import Network
from dgc.engines.base import Engine, EngineError, nbytes

T = TypeVar('T')


def simulate(
    size: int, worker: Callable[[SimulatedEngine], T], network: Network | None = None
) -> list[T]:
    """Run ``worker(engine)`` as each of ``size`` workers; returns their results by rank.

    The first error of any worker ends all of them and is raised here, or, where it is one that all
    raise together, that of a worker whose fault it is: whose ``rank`` is not None.

    network: what messages take on the workers' virtual clocks; ``None`` for no time.
    """
    if size < 1:
        raise EngineError(f'engine simulated needs a size of at least 1, got {size}')
    world = World(size, network or Network(0.0, 0.0))
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        """One worker, on a thread of its own."""
        world.enter(rank)
        try:
            results[rank] = worker(SimulatedEngine(world, rank))
        except BaseException as error:  # raised again by simulate, in the caller's thread
            world.fail(error)
        finally:
            world.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    world.begin()
    for thread in threads:
        thread.join()
    if world.errors:
        raise min(world.errors, key=lambda error: getattr(error, 'rank', 0) is None)
    return results


class StoppedError(EngineError):
    """Raised in a worker because another one failed."""


class Letter(NamedTuple):
    """A message on its way. arrival: on the virtual clock, in seconds."""

    tensor: Tensor
    arrival: float


@dataclass
class Meeting:
    """The collective that is under way: there is one at a time, since it takes all workers.

    call, caller: what the first to come calls, so all must, and its rank.
    parts: what has been brought, by rank; not copied, for whoever brought it waits.
    start: the latest of their clocks, in seconds.
    result: what the last to come makes of the parts.
    """

    call: str = ''
    caller: int = 0
    parts: dict[int, Tensor] = field(default_factory=dict)
    start: float = 0.0
    result: Tensor | None = None


class World:
    """The baton, and what lies between workers.

    meeting: the collective to which workers have come, or will come next.
    mailboxes: by sender and receiver, messages not yet fetched; there are no empty ones.
    """

    def __init__(self, size: int, network: Network) -> None:
        self.size = size
        self.network = network
        self.meeting = Meeting()
        self.mailboxes: dict[tuple[int, int], deque[Letter]] = defaultdict(deque)
        self.errors: list[BaseException] = []
        self._batons = [threading.Semaphore(0) for _ in range(size)]
        self._ready = deque(range(size))
        self._blocked: dict[int, Callable[[], bool]] = {}
        self._random = [RandomState()] * size
        self._loaded = self._random[0]
        self._threads = torch.get_num_threads()

    def begin(self) -> None:
        """Give the baton to rank 0."""
        self._hand_on()

    def enter(self, rank: int) -> None:
        """Wait for the baton for the first time."""
        self._batons[rank].acquire()
        torch.set_num_threads(self._threads)  # it is a setting of each thread
        self._load(rank)

    def leave(self, rank: int) -> None:
        """Hand the baton on for good."""
        self._keep(rank)
        self._hand_on()

    def fail(self, error: BaseException) -> None:
        """Remember the error; the others stop where they have to wait."""
        self.errors.append(error)
        self._ready.extend(self._blocked)
        self._blocked.clear()

    def wait(self, rank: int, ready: Callable[[], bool]) -> None:
        """Let the others run until ``ready()``, which whoever brings it about tells ``wake``."""
        while not ready():
            if self.errors:
                raise StoppedError('another worker failed')
            self._blocked[rank] = ready
            self._keep(rank)
            self._hand_on()
            self._batons[rank].acquire()
            self._load(rank)

    def wake(self, rank: int) -> None:
        """Have ``rank`` go on, in its turn, if it waits for what has come."""
        if rank in self._blocked and self._blocked[rank]():
            del self._blocked[rank]
            self._ready.append(rank)

    def _keep(self, rank: int) -> None:
        """Remember the generators for ``rank``: the same object, where it has not drawn."""
        now = RandomState()
        if not now.equals(self._loaded):
            self._loaded = now
        self._random[rank] = self._loaded

    def _load(self, rank: int) -> None:
        """Set the generators to what is remembered, if they stand elsewhere."""
        if self._random[rank] is not self._loaded:
            self._loaded = self._random[rank]
            self._loaded.restore()

    def _hand_on(self) -> None:
        """Release the baton of the next that can go on."""
        if self._blocked and not self._ready:
            blocked = sorted(self._blocked)
            self.fail(EngineError(f'deadlock: ranks {blocked} wait for one another'))
        if self._ready:
            self._batons[self._ready.popleft()].release()


class RandomState:
    """The global random number generators, as they stand when this is made."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._numpy = np.random.get_state()
        self._python = random.getstate()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def equals(self, other: RandomState) -> bool:
        """Whether both would draw the same numbers; not told where NumPy has a generator other than
        its own."""
        ours, theirs = self._numpy, other._numpy
        return (
            torch.equal(self._torch, other._torch)
            and (isinstance(ours, tuple) and isinstance(theirs, tuple))
            and (ours[2:] == theirs[2:] and np.array_equal(ours[1], theirs[1]))
            and self._python == other._python
            and len(self._cuda) == len(other._cuda)
            and all(map(torch.equal, self._cuda, other._cuda))
        )

    def restore(self) -> None:
        """Set the generators back."""
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class SimulatedEngine(Engine):
    """One worker of a :class:`World`. All of them are taken to sit on machines of their own."""

    name = 'simulated'
    has_thread = False

    def __init__(self, world: World, rank: int) -> None:
        super().__init__(rank, world.size, local_rank=0, local_size=1)
        self._world = world
        self._clock = 0.0

    @property
    def clock(self) -> float:
        """Seconds since the start, on this worker's virtual clock."""
        return self._clock

    def compute(self, seconds: float) -> None:
        """Move the clock on, as if this worker had computed for so long."""
        self._clock += seconds

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        seconds = self._world.network.all_reduce(nbytes(tensor), self.size)
        return tensor.copy_(self._meet('all_reduce', tensor, add_up, seconds))

    def _all_gather(self, tensor: Tensor) -> Tensor:
        seconds = self._world.network.all_gather(nbytes(tensor), self.size)
        return self._meet('all_gather', tensor, torch.stack, seconds).clone()

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        """A message takes its sender as long as its way, beside what the sender receives."""
        world = self._world
        if destination is not None:
            if destination != self.rank:
                self._clock += world.network.message(nbytes(tensor))
            world.mailboxes[self.rank, destination].append(Letter(tensor.clone(), self._clock))
            world.wake(destination)
        if source is None:
            return None
        key = source, self.rank
        world.wait(self.rank, lambda: key in world.mailboxes)
        received, arrival = world.mailboxes[key].popleft()
        if not world.mailboxes[key]:
            del world.mailboxes[key]
        self._clock = max(self._clock, arrival)
        return received

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        seconds = self._world.network.broadcast(nbytes(tensor), self.size)
        return tensor.copy_(
            self._meet('broadcast', tensor, lambda parts: parts[root].clone(), seconds)
        )

    def _barrier(self) -> None:
        seconds = self._world.network.barrier(self.size)
        self._meet('barrier', torch.zeros(0), lambda parts: parts[0], seconds)

    def _meet(
        self,
        kind: str,
        tensor: Tensor,
        combine: Callable[[list[Tensor]], Tensor],
        seconds: float,
    ) -> Tensor:
        """``combine`` of what every rank brings to this collective, by rank: all get the same
        tensor. It takes so many seconds from when the last has come."""
        world, meeting = self._world, self._world.meeting
        call = f'{kind} of {tensor.dtype} {list(tensor.shape)}'
        if not meeting.parts:
            meeting.call, meeting.caller = call, self.rank
        elif meeting.call != call:
            raise EngineError(
                f'rank {self.rank} calls {call} where rank {meeting.caller} calls {meeting.call}'
            )
        meeting.parts[self.rank] = tensor
        meeting.start = max(meeting.start, self._clock)
        if len(meeting.parts) == self.size:
            world.meeting = Meeting()
            meeting.result = combine([meeting.parts[rank] for rank in range(self.size)])
            for rank in meeting.parts:
                world.wake(rank)
        world.wait(self.rank, lambda: meeting.result is not None)
        assert meeting.result is not None
        self._clock = meeting.start + seconds
        return meeting.result


def add_up(parts: Sequence[Tensor]) -> Tensor:
    """The sum, in this order."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
