"""Simulate P workers in one process: deterministic, with counted traffic and virtual clocks.

Each worker is a thread that runs the same code as on real machines. One thread runs at a time: it
holds the scheduler's token until it must wait in an engine call, and the token then passes to the
worker that has been able to continue for longest. Each worker has its own random number state, so
results depend neither on the operating system's scheduling nor on the number of other workers.

Each worker also has a virtual clock, in seconds, that advances by what an α-β model of a network
predicts for its engine calls (dgc/costmodel.py), independent of how long this computer takes.
"""

from __future__ import annotations

import ctypes
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
WAKE_SECONDS = 0.2  # after which a signal is handled at the latest
MERSENNE_TWISTER_BYTES = 4 * (624 + 1)  # its numbers and the position of the next one
Channel = tuple[int, ...]  # () of an engine, (..., n) of the n-th duplicate of an engine


def simulate(
    size: int, worker: Callable[[SimulatedEngine], T], network: Network | None = None
) -> list[T]:
    """Run ``worker(engine)`` as each of ``size`` workers.

    Args:
        size: the number of workers, at least 1.
        worker: the program of one rank.
        network: the cost of messages on the virtual clocks; ``None`` for no cost.

    Returns:
        The results, by rank.

    Raises:
        EngineError: the size is below 1, or the workers deadlock.
        BaseException: the first error that a worker raised, which ends all of them. Of errors that
            all workers raise together, the one whose attribute ``rank`` names the cause.
    """
    if size < 1:
        raise EngineError(f'engine simulated needs a size of at least 1, got {size}')
    scheduler = Scheduler(size, network or Network(0.0, 0.0))
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        """Run one worker in its thread."""
        scheduler.enter(rank)
        try:
            results[rank] = worker(SimulatedEngine(scheduler, rank))
        except BaseException as error:  # raised again by simulate, in the caller's thread
            scheduler.fail(error)
        finally:
            scheduler.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    scheduler.begin()
    for thread in threads:
        # The operating system may hand a signal to a worker's thread, while its Python handler runs
        # only in this one, which must wake up for it.
        while thread.is_alive():
            thread.join(WAKE_SECONDS)
    if scheduler.errors:
        raise min(scheduler.errors, key=lambda error: getattr(error, 'rank', 0) is None)
    return results


class StoppedError(EngineError):
    """Raised in a worker that waits when another one has failed."""


class QueuedMessage(NamedTuple):
    """A message that was sent and not yet received.

    Attributes:
        tensor: Its content.
        arrival: When it arrives, in seconds on the virtual clock.
    """

    tensor: Tensor
    arrival: float


@dataclass
class PendingCollective:
    """The collective that some workers have entered; one at a time, since it takes all of them.

    Attributes:
        call, caller: description of the call by the first worker to enter, which the others must
            match, and the rank of that worker.
        inputs: the tensors of those that have entered, by rank. They are not copied, since a worker
            does not return from the call before the result is made.
        start: the latest clock of those that have entered, in seconds.
        result: computed by the last worker to enter.
    """

    call: str = ''
    caller: int = 0
    inputs: dict[int, Tensor] = field(default_factory=dict)
    start: float = 0.0
    result: Tensor | None = None


class Scheduler:
    """Passes a token among the workers' threads, and holds what they exchange.

    Only the thread that has the token touches the state here and in the engines, so that nothing
    needs a lock.

    Attributes:
        collectives: by channel, the one that workers have entered, or will enter next. Duplicates
            of an engine have channels of their own.
        mailboxes: by channel, sender and receiver, the messages not yet received; empty ones are
            removed.
        clocks: the seconds on the virtual clock of each worker.
        errors: what workers have raised, in order.
        gpus: those of the tensors that workers have exchanged.
    """

    def __init__(self, size: int, network: Network) -> None:
        self.size = size
        self.network = network
        self.collectives: dict[Channel, PendingCollective] = defaultdict(PendingCollective)
        self.mailboxes: dict[tuple[Channel, int, int], deque[QueuedMessage]] = defaultdict(deque)
        self.clocks = [0.0] * size
        self.errors: list[BaseException] = []
        self.gpus: set[torch.device] = set()
        # Thread r runs once its lock is released; at most one of them is free. A Semaphore is made
        # of several locks, and would take longer to pass the token.
        self._tokens = [threading.Lock() for _ in range(size)]
        for token in self._tokens:
            token.acquire()
        self._ready = deque(range(size))
        self._blocked: dict[int, Callable[[], bool]] = {}
        # The random state of each worker, and which of these objects the global generators hold.
        self._random = [RandomState()] * size
        self._loaded = self._random[0]
        self._threads = torch.get_num_threads()

    def note(self, device: torch.device) -> None:
        """Note where an exchanged tensor is."""
        if device.type == 'cuda':
            self.gpus.add(device)

    def begin(self) -> None:
        """Let rank 0 run. Called once, when all threads are started."""
        self._run_next()

    def enter(self, rank: int) -> None:
        """Wait for the token for the first time. Called by the thread of ``rank``."""
        self._tokens[rank].acquire()
        torch.set_num_threads(self._threads)  # torch keeps this setting per thread
        self._load_random(rank)

    def leave(self, rank: int) -> None:
        """Pass the token on at the end of the worker."""
        self._save_random(rank)
        self._run_next()

    def fail(self, error: BaseException) -> None:
        """Record an error, and make all waiting workers ready, so that they raise StoppedError."""
        self.errors.append(error)
        self._ready.extend(self._blocked)
        self._blocked.clear()

    def wait(self, rank: int, ready: Callable[[], bool]) -> None:
        """Let other workers run until ``ready()``.

        It is evaluated on entry and when another worker calls ``wake(rank)``, which the one that
        makes it true must do.

        Raises:
            StoppedError: another worker failed.
        """
        while not ready():
            if self.errors:
                raise StoppedError('another worker failed')
            self._blocked[rank] = ready
            self._save_random(rank)
            self._run_next()
            self._tokens[rank].acquire()
            self._load_random(rank)

    def wake(self, rank: int) -> None:
        """Append ``rank`` to the queue of workers to run, if what it waits for has happened."""
        if rank in self._blocked and self._blocked[rank]():
            del self._blocked[rank]
            self._ready.append(rank)

    def _save_random(self, rank: int) -> None:
        """Store the state of the global generators for ``rank``.

        States are large (2.5 kB for NumPy, 5 kB for torch), so a worker that has drawn nothing
        shares the object that was loaded, and 1,024 workers need not have one each.
        """
        if not self._loaded.is_current():
            self._loaded = RandomState()
        self._random[rank] = self._loaded

    def _load_random(self, rank: int) -> None:
        """Set the global generators to the state of ``rank``, unless they hold it already."""
        if self._random[rank] is not self._loaded:
            self._loaded = self._random[rank]
            self._loaded.restore()

    def _run_next(self) -> None:
        """Give the token to the first worker of the queue.

        Each worker has streams of its own on a GPU, and none waits for another's: what this one
        queued must be complete before another one reads it, or is given its memory. Here errors of
        its kernels show.

        If all remaining workers wait, they are deadlocked, and fail with that error.
        """
        if self._blocked and not self._ready:
            blocked = sorted(self._blocked)
            self.fail(EngineError(f'deadlock: ranks {blocked} wait for one another'))
        for device in self.gpus:
            try:
                torch.cuda.synchronize(device)
            except RuntimeError as error:
                self.fail(error)
        if self._ready:
            self._tokens[self._ready.popleft()].release()


class RandomState:
    """A copy of the state of the global generators of torch, NumPy, Python and CUDA."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._numpy = np.random.get_state()
        self._numpy_memory = known_memory(self._numpy)
        self._python = random.getstate()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def is_current(self) -> bool:
        """Return whether the generators would draw the same numbers as when this was made.

        False where NumPy's generator was replaced by one whose state is not a tuple.
        """
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return (
            torch.equal(self._torch, torch.get_rng_state())
            and self._numpy_is_current()
            and self._python == random.getstate()
            and len(self._cuda) == len(cuda)
            and all(map(torch.equal, self._cuda, cuda))
        )

    def _numpy_is_current(self) -> bool:
        """Return whether NumPy's generator would draw the same numbers.

        ``get_state`` takes 40 to 80 µs, longer than all else in a change of workers. Reading the
        memory takes 1 µs and leaves out a single number: the second of two normal ones, which NumPy
        keeps for the next call. Where there is none, as in most states, making one draws from the
        memory as well; only ``set_state`` can add one to a state that is otherwise the same.
        """
        if self._numpy_memory:
            return self._numpy_memory == mersenne_twister_memory()
        ours, now = self._numpy, np.random.get_state()
        return (isinstance(ours, tuple) and isinstance(now, tuple)) and (
            ours[2:] == now[2:] and np.array_equal(ours[1], now[1])
        )

    def restore(self) -> None:
        """Set the global generators to this state."""
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


def mersenne_twister_memory() -> bytes:
    """The numbers and the position of NumPy's global Mersenne Twister; empty of another one."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if not isinstance(generator, np.random.MT19937):
        return b''
    return ctypes.string_at(generator.ctypes.state_address, MERSENNE_TWISTER_BYTES)


def known_memory(state: Any) -> bytes:
    """The memory of NumPy's generator, where it and nothing else is ``state``; else empty."""
    memory = mersenne_twister_memory()
    if not memory or not isinstance(state, tuple):
        return b''
    _, numbers, position, has_second_normal, _ = state
    laid_out = numbers.tobytes() + np.int32(position).tobytes()
    return memory if memory == laid_out and not has_second_normal else b''


class SimulatedEngine(Engine):
    """The engine of one worker of a :class:`Scheduler`. Each is taken to be on its own machine."""

    name = 'simulated'
    has_thread = False

    def __init__(self, scheduler: Scheduler, rank: int, channel: Channel = ()) -> None:
        super().__init__(rank, scheduler.size, local_rank=0, local_size=1)
        self._scheduler = scheduler
        self._channel = channel

    @property
    def clock(self) -> float:
        """Seconds since the start, on the virtual clock of this worker."""
        return self._clock

    @property
    def _clock(self) -> float:
        return self._scheduler.clocks[self.rank]

    @_clock.setter
    def _clock(self, seconds: float) -> None:
        self._scheduler.clocks[self.rank] = seconds

    def compute(self, seconds: float) -> None:
        """Advance the virtual clock, as if this worker had computed for ``seconds``."""
        self._clock += seconds

    def _duplicate(self) -> Engine:
        channel = *self._channel, len(self._duplicates)
        return SimulatedEngine(self._scheduler, self.rank, channel)

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        seconds = self._scheduler.network.all_reduce(nbytes(tensor), self.size)
        return tensor.copy_(self._collective('all_reduce', tensor, add_up, seconds))

    def _all_gather(self, tensor: Tensor) -> Tensor:
        seconds = self._scheduler.network.all_gather(nbytes(tensor), self.size)
        return self._collective('all_gather', tensor, torch.stack, seconds).clone()

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        """Send and receive; a message occupies its sender for its whole time, α + βm.

        Links are full-duplex, so a message received meanwhile costs no extra time.
        """
        scheduler = self._scheduler
        scheduler.note(tensor.device)
        if destination is not None:
            if destination != self.rank:
                self._clock += scheduler.network.message(nbytes(tensor))
            message = QueuedMessage(tensor.clone(), self._clock)
            scheduler.mailboxes[self._channel, self.rank, destination].append(message)
            scheduler.wake(destination)
        if source is None:
            return None
        key = self._channel, source, self.rank
        scheduler.wait(self.rank, lambda: key in scheduler.mailboxes)
        received, arrival = scheduler.mailboxes[key].popleft()
        if not scheduler.mailboxes[key]:
            del scheduler.mailboxes[key]
        self._clock = max(self._clock, arrival)
        return received

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        seconds = self._scheduler.network.broadcast(nbytes(tensor), self.size)
        return tensor.copy_(
            self._collective('broadcast', tensor, lambda inputs: inputs[root].clone(), seconds)
        )

    def _barrier(self) -> None:
        seconds = self._scheduler.network.barrier(self.size)
        nothing = torch.zeros(0, dtype=torch.float32)
        self._collective('barrier', nothing, lambda inputs: inputs[0], seconds)

    def _collective(
        self,
        kind: str,
        tensor: Tensor,
        combine: Callable[[list[Tensor]], Tensor],
        seconds: float,
    ) -> Tensor:
        """Enter a collective with ``tensor`` and wait for its result.

        Args:
            kind: the name of the call, which must be the same on all ranks.
            combine: computes the result from the tensors of all ranks, by rank. All ranks get the
                same object.
            seconds: how long it takes on the virtual clocks once the last worker has entered.

        Raises:
            EngineError: another rank is in a different collective.
        """
        scheduler = self._scheduler
        scheduler.note(tensor.device)
        pending = scheduler.collectives[self._channel]
        call = f'{kind} of {tensor.dtype} {list(tensor.shape)}'
        if not pending.inputs:
            pending.call, pending.caller = call, self.rank
        elif pending.call != call:
            raise EngineError(
                f'rank {self.rank} calls {call} where rank {pending.caller} calls {pending.call}'
            )
        pending.inputs[self.rank] = tensor
        pending.start = max(pending.start, self._clock)
        if len(pending.inputs) == self.size:
            # Replaced before any worker continues, since that one may enter the next collective.
            scheduler.collectives[self._channel] = PendingCollective()
            pending.result = combine([pending.inputs[rank] for rank in range(self.size)])
            for rank in pending.inputs:
                scheduler.wake(rank)
        scheduler.wait(self.rank, lambda: pending.result is not None)
        assert pending.result is not None
        self._clock = pending.start + seconds
        return pending.result


def add_up(inputs: Sequence[Tensor]) -> Tensor:
    """Return the sum of the tensors, added in their order."""
    total = inputs[0].clone()
    for tensor in inputs[1:]:
        total += tensor
    return total
