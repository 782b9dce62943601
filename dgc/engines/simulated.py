"""Many workers in one process, in turns: cheap, deterministic, and counted.

Each worker is a thread that runs the very code that trains on real machines. They pass a baton:
one runs at a time, and the next is chosen, in order of rank, only where an engine call has to
wait. Each has its own random number state, so that results depend neither on the machine's
scheduling nor on how many others there are.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dgc.engines.base import Engine, EngineError

T = TypeVar('T')


def simulate(size: int, worker: Callable[[Engine], T]) -> list[T]:
    """Run ``worker(engine)`` as each of ``size`` workers; returns their results by rank.

    The first error of any worker ends all of them and is raised here, or, where it is one that all
    raise together, that of a worker whose fault it is: whose ``rank`` is not None.
    """
    if size < 1:
        raise EngineError(f'engine simulated needs a size of at least 1, got {size}')
    world = World(size)
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


class World:
    """The baton, and the letters that lie between workers.

    contributions: for each collective, by its number, what every rank has brought so far.
    mailboxes: by sender and receiver, messages not yet fetched.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.contributions: dict[int, dict[int, tuple[str, Tensor]]] = defaultdict(dict)
        self.mailboxes: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self.errors: list[BaseException] = []
        self._batons = [threading.Semaphore(0) for _ in range(size)]
        self._blocked: dict[int, Callable[[], bool]] = {}
        self._running = set(range(size))
        self._random = [RandomState() for _ in range(size)]
        self._threads = torch.get_num_threads()

    def begin(self) -> None:
        """Give the baton to rank 0."""
        self._batons[0].release()

    def enter(self, rank: int) -> None:
        """Wait for the baton for the first time."""
        self._batons[rank].acquire()
        torch.set_num_threads(self._threads)  # it is a setting of each thread
        self._random[rank].restore()

    def leave(self, rank: int) -> None:
        """Hand the baton on for good."""
        self._running.discard(rank)
        self._hand_on(rank)

    def fail(self, error: BaseException) -> None:
        """Remember the error; the others stop where they have to wait."""
        self.errors.append(error)

    def wait(self, rank: int, ready: Callable[[], bool]) -> None:
        """Let the others run until ``ready()``."""
        while not ready():
            if self.errors:
                raise StoppedError('another worker failed')
            self._blocked[rank] = ready
            self._random[rank] = RandomState()
            self._hand_on(rank)
            self._batons[rank].acquire()
            self._random[rank].restore()
        self._blocked.pop(rank, None)

    def _hand_on(self, rank: int) -> None:
        """Release the baton of the next rank that can go on."""
        order = [(rank + step) % self.size for step in range(1, self.size + 1)]
        alive = [other for other in order if other in self._running]
        for other in alive:
            ready = self._blocked.get(other)
            if ready is None or self.errors or ready():
                self._batons[other].release()
                return
        if alive:
            self.fail(EngineError(f'deadlock: ranks {sorted(alive)} wait for one another'))
            self._batons[alive[0]].release()


class RandomState:
    """The global random number generators, as they stand when this is made."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._numpy = np.random.get_state()
        self._python = random.getstate()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def restore(self) -> None:
        """Set the generators back."""
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


class SimulatedEngine(Engine):
    """One worker of a :class:`World`. All of them are taken to sit on machines of their own."""

    name = 'simulated'
    has_thread = False

    def __init__(self, world: World, rank: int) -> None:
        super().__init__(rank, world.size, local_rank=0, local_size=1)
        self._world = world
        self._collectives = 0

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        parts = self._collect('all_reduce', tensor)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return tensor.copy_(total)

    def _all_gather(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._collect('all_gather', tensor))

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        if destination is not None:
            self._world.mailboxes[self.rank, destination].append(tensor.clone())
        if source is None:
            return None
        mailbox = self._world.mailboxes[source, self.rank]
        self._world.wait(self.rank, lambda: bool(mailbox))
        return mailbox.popleft()

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        return tensor.copy_(self._collect('broadcast', tensor)[root])

    def _barrier(self) -> None:
        self._collect('barrier', torch.zeros(0))

    def _collect(self, kind: str, tensor: Tensor) -> list[Tensor]:
        """What every rank brought to this rank's next collective, by rank."""
        number = self._collectives
        self._collectives += 1
        brought = self._world.contributions[number]
        shape = f'{kind} of {tensor.dtype} {list(tensor.shape)}'
        brought[self.rank] = (shape, tensor.clone())
        self._world.wait(self.rank, lambda: len(brought) == self.size)
        for rank in range(self.size):
            if brought[rank][0] != shape:
                raise EngineError(
                    f'rank {rank} calls {brought[rank][0]} where rank {self.rank} calls {shape}'
                )
        parts = [brought[rank][1] for rank in range(self.size)]
        self._forget_older(number)
        return parts

    def _forget_older(self, number: int) -> None:
        """Free the collective before this one: whoever is here has left that one behind."""
        self._world.contributions.pop(number - 1, None)
