"""The engine interface: collectives between ranks, called from one communication thread.

Collectives of one group are matched across ranks by their order. If two threads of a rank called
them, that order would depend on scheduling, and different tensors would be summed without an error.
"""

from __future__ import annotations

import atexit
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dgc.engines.cores import available_cores
from dgc.engines.jobs import EngineError as EngineError  # others import it from here
from dgc.engines.jobs import JobThread
from dgc.engines.pace import Pace
from dgc.spans import Recorder

T = TypeVar('T')
MOST = 4  # engines of one process before garbage is collected to find free ones
EXIT_SECONDS = 1.0  # that the end of a process waits for jobs that are not complete


class StalledError(EngineError):
    """A call of the engine has waited too long for other ranks.

    Attributes:
        rank: The rank that prints the message, where all ranks that wait raise it.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class LostError(EngineError):
    """A call failed since a rank is gone, in an engine whose ranks may go (torchft).

    No rank applies the step of the call.
    """


class Wait(NamedTuple):
    """A call of an engine that is not complete.

    Attributes:
        call: Its number among the calls of this engine.
        what: Its name, and the bucket that it serves.
        seconds: Since it began.
        expected: The longest time that calls, and the computing between them, have taken so far;
            None where that is not known yet (``dgc/engines/pace.py``).
    """

    call: int
    what: str
    seconds: float
    expected: float | None = None


@dataclass
class Traffic:
    """Bytes and messages of one rank through an engine, and the time that its calls took.

    Attributes:
        sent, received: bytes, counted as a ring all-reduce, a ring all-gather and a binomial tree
            move them, whatever algorithm the library beneath uses.
        messages: messages sent, counted in the same way.
        rounds: messages that follow one another, on the longest path from a rank to another one;
            all ranks count the same. path: their bytes. On links of latency α and β seconds per
            byte, all calls take α·rounds + β·path (``Network.path``), or less where a call need
            not wait for the one before it on other ranks.
        seconds: wall-clock time inside the engine's calls.
        clock_seconds: the same on ``Engine.clock``, which in a simulation is virtual.
    """

    sent: int = 0
    received: int = 0
    messages: int = 0
    rounds: int = 0
    path: int = 0
    seconds: float = 0.0
    clock_seconds: float = 0.0


class Engine(ABC):
    """Collectives among ``size`` ranks.

    Public methods may be called from any thread: they run on the engine's own, in the order of
    the calls, which must be the same on every rank. They block until the result is complete.

    Tensors may be on any device, and of the types that the library beneath supports: not all
    support bool, integers below 32 bits, or tensors without dimensions (see ``as_bytes``).

    Attributes:
        rank, size: of this process among all of the job.
        local_rank, local_size: of this process among those on its machine.
        traffic: bytes, messages and seconds so far.
        bucket: the name of the bucket whose job runs, for messages about a call that waits; ''
            for other jobs.
        user: returns the reducer that submits its buckets here, or None where there is none.
        is_shared: whether there are duplicates of this engine, or it is one: several reducers of
            this process send at a time.
        is_closed: whether ``close()`` was called.
        pipeline: whether ``beside`` has a thread of its own; None where a rank has two cores.
            Ranks may differ in it.
        recorder: Receives every call, for a trace; None for none.
    """

    name = ''
    has_thread = True  # else jobs run in the thread that submits them

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.traffic = Traffic()
        self.bucket = ''
        self.user: Callable[[], object] = no_user
        self.is_shared = False
        self.is_closed = False
        self.pipeline: bool | None = None
        self.recorder: Recorder | None = None
        self._duplicates: list[Engine] = []
        self._calls = 0
        self._running: Callable[[], Any] | None = None  # the call that is not complete
        self._moved = 0.0  # when a call began or ended last, by time.perf_counter
        self._sends = 0  # bytes, in the call that is not complete
        self._pace = Pace()
        self._thread = JobThread('dgc-engine') if self.has_thread else None
        self._computing: JobThread | None = None

    @property
    def clock(self) -> float:
        """Seconds since an arbitrary moment, on the clock of this rank."""
        return time.perf_counter()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run ``job``, which may call the engine, on the engine's thread; does not wait."""
        if self._thread is not None:
            return self._thread.submit(job)
        future: Future[T] = Future()
        try:
            future.set_result(job())
        except Exception as error:  # raised again by future.result()
            future.set_exception(error)
        return future

    @property
    def is_pipelined(self) -> bool:
        """Whether ``beside`` runs its jobs beside the engine's calls."""
        if self.pipeline is not None:
            return self.pipeline
        return self.has_thread and self.size > 1 and self._has_spare_core

    @cached_property
    def _has_spare_core(self) -> bool:
        """Whether each rank of this machine has a core beside that of its backward pass."""
        return available_cores() >= 2 * self.local_size

    def beside(self, job: Callable[[], T]) -> Callable[[], T]:
        """Return a function that returns the result of ``job``, which makes no call of the engine.

        Where the engine is pipelined, ``job`` is queued now, and runs on a thread of its own beside
        the engine's calls, after those that were queued before. Else it runs when the result is
        asked for.
        """
        if not self.is_pipelined:
            return job
        if self._thread is not None:
            self._thread.check_open()
        if self._computing is None:
            self._computing = JobThread('dgc-compute')
            # A thread that is in a kernel when the interpreter ends would abort the process.
            atexit.register(self._computing.end, EXIT_SECONDS)
        return self._computing.submit(job).result

    def drain(self) -> None:
        """Return when all jobs of ``beside`` that were queued have run."""
        if self._computing is not None and not self.is_closed:
            self._computing.submit(lambda: None).result()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum ``tensor``, of any shape, over the ranks, in place; returns it."""
        ring = round(2 * (self.size - 1) / self.size * nbytes(tensor))
        messages = 2 * (self.size - 1)
        return self._call(partial(self._all_reduce, tensor), ring, ring, messages, messages, ring)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Gather the ranks' ``tensor[m]`` as ``[P, m]``; m is above 0 and the same on all ranks."""
        messages = self.size - 1
        others = messages * nbytes(tensor)
        job = partial(self._all_gather, tensor)
        return self._call(job, others, others, messages, messages, others)

    def send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        """Send ``tensor[m]`` to ``destination`` and receive as many elements from ``source``.

        Every rank must make the call, also with neither: Horovod has no point-to-point messages,
        so its engine uses an all-to-all.

        Args:
            tensor: what is sent; its length and type are also those of what is received.
            destination, source: ranks, or ``None`` to send or receive nothing.

        Returns:
            What was received, or ``None`` without a source.
        """
        sent = nbytes(tensor) if destination is not None else 0
        received = nbytes(tensor) if source is not None else 0
        job = partial(self._send_recv, tensor, destination, source)
        is_sent = destination != self.rank  # else no message leaves the rank
        path = is_sent * nbytes(tensor)  # others send as much, where this rank sends nothing
        return self._call(job, sent, received, int(destination is not None), int(is_sent), path)

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Overwrite ``tensor``, of any shape, with that of rank ``root``; returns it."""
        copies = children((self.rank - root) % self.size, self.size)
        received = 0 if self.rank == root else nbytes(tensor)
        job = partial(self._broadcast, tensor, root)
        rounds = (self.size - 1).bit_length()
        sent, path = copies * nbytes(tensor), rounds * nbytes(tensor)
        return self._call(job, sent, received, copies, rounds, path)

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self._call(self._barrier, 0, 0, 0, rounds=(self.size - 1).bit_length())

    def confirm(self) -> None:
        """Return when all ranks are known to have completed the exchanges of this step.

        Called once in a step, after its last exchange and before any of its results is applied.
        An engine whose ranks may go (torchft) asks all of them; others have nothing to do, since
        there a call that a rank misses ends the run.

        Raises:
            LostError: Where a rank has not; then no rank applies the step.
        """

    def close(self) -> None:
        """Leave the group once all submitted jobs are done. Later calls raise EngineError, but for
        this one.

        Not to be called after an error: peers may have died, and this would wait for them.
        """
        self.is_closed = True
        for duplicate in self._duplicates:
            duplicate.close()
        if self._thread is not None:
            self._thread.stop()
        if self._computing is not None:  # after the jobs above, which wait for its results
            atexit.unregister(self._computing.end)
            self._computing.stop()

    def for_reducer(self, device: torch.device | str) -> Engine:
        """Return an engine of the same ranks that no reducer uses. A collective.

        It is this engine or a duplicate. The buckets of two reducers on one engine would pair up
        across ranks in the order in which they are submitted, which is that of the gradients of
        each rank, so sums would be of different buckets.

        Args:
            device: Of the tensors that the engine carries.

        Raises:
            EngineError: Where this engine cannot be duplicated.
        """
        if self.size == 1:
            return self
        engines = [self, *self._duplicates]
        if len(engines) >= MOST and all(engine.user() is not None for engine in engines):
            gc.collect()  # reducers that the program has dropped, which refer to themselves
        # Ranks may differ in what they have collected, so an engine is free if it is on all ranks.
        uses = [float(engine.user() is not None) for engine in engines]
        counts = self.all_reduce(torch.tensor(uses, device=device)).tolist()
        for engine, count in zip(engines, counts, strict=True):
            if not count:
                return engine
        duplicate = self._duplicate()
        duplicate.pipeline = self.pipeline
        self._duplicates.append(duplicate)
        self.is_shared = duplicate.is_shared = True
        return duplicate

    def waiting(self) -> Wait | None:
        """Return the call that this rank is in; None outside of calls. From any thread.

        A job on a GPU waits for its calls after they have returned, so this is the last call of a
        job that has not ended.
        """
        since = None if self._thread is None else self._thread.busy_since
        if since is None:
            return None
        job = self._running
        call = getattr(job, 'func', job)  # of a partial, its method
        what = 'a computation' if call is None else call.__name__.strip('_')
        if self.bucket:
            what = f'{what} of bucket {self.bucket}'
        traffic = self.traffic
        expected = self._pace.expect(traffic.sent, traffic.seconds, self._sends)
        return Wait(self._calls, what, time.perf_counter() - max(since, self._moved), expected)

    def fail(self, error: Exception) -> None:
        """Raise ``error`` wherever a result of this engine is waited for, and in later calls."""
        if self._thread is not None:
            self._thread.fail(error)

    def _call(
        self,
        job: Callable[[], T],
        sent: int,
        received: int,
        messages: int,
        rounds: int = 0,
        path: int = 0,
    ) -> T:
        if self._computing is not None and self._computing.is_current:
            # Queued, the call might be behind a bucket that waits for what makes it.
            raise EngineError(
                'a clipping, transform, memory or compressor called the engine while the bucket '
                "before was being sent: set the engine's pipeline to False"
            )
        # A job that is already on the engine's thread calls directly: queued behind itself, it
        # would wait for ever.
        if self._thread is not None and not self._thread.is_current:
            call = partial(self._call, job, sent, received, messages, rounds, path)
            return self._thread.submit(call).result()
        start, clock = time.perf_counter(), self.clock
        self._pace.begin(start)
        self._calls, self._running, self._moved = self._calls + 1, job, start
        self._sends = sent
        result = job()
        self._running, self._moved = None, time.perf_counter()
        self._pace.end(start, self._moved, self.bucket)
        self.traffic.seconds += self._moved - start
        self.traffic.clock_seconds += self.clock - clock
        self.traffic.sent += sent
        self.traffic.received += received
        self.traffic.messages += messages
        self.traffic.rounds += rounds
        self.traffic.path += path
        if self.recorder is not None:
            name = getattr(job, 'func', job).__name__.strip('_')
            self.recorder.add_call(name, self.bucket, start, self._moved, sent)
        return result

    def _duplicate(self) -> Engine:
        """Return another engine of the same ranks, whose calls are in an order of their own. A
        collective."""
        raise EngineError(
            f'engine {self.name} serves one optimizer, and another one uses it: give each '
            'optimizer an engine of its own'
        )

    @abstractmethod
    def _all_reduce(self, tensor: Tensor) -> Tensor: ...

    @abstractmethod
    def _all_gather(self, tensor: Tensor) -> Tensor: ...

    @abstractmethod
    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None: ...

    def _to_itself(self, tensor: Tensor, destination: int | None, source: int | None) -> Tensor:
        """Return a copy of what this rank, which is one of both, sends to itself.

        Raises:
            ValueError: It is not both.
        """
        if destination != source:
            raise ValueError(
                f'rank {self.rank} cannot send to {destination} and receive from {source}: '
                'a message to itself must be both'
            )
        return tensor.clone()

    @abstractmethod
    def _broadcast(self, tensor: Tensor, root: int) -> Tensor: ...

    @abstractmethod
    def _barrier(self) -> None: ...


def no_user() -> None:
    """Return None: the ``user`` of an engine on which no reducer is."""


def children(place: int, size: int) -> int:
    """Return the number of children of node ``place`` in a binomial tree of ``size`` nodes.

    The root is node 0; the children are ``place + 2^j`` for every 2^j above ``place``.
    """
    return sum(place < 1 << j < size - place for j in range(size.bit_length()))


def nbytes(tensor: Tensor) -> int:
    """Return the number of bytes of the elements of ``tensor``."""
    return tensor.numel() * tensor.element_size()


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a flat uint8 copy of a tensor of any shape and type, for engines to transfer."""
    # A single element of any stride counts as contiguous, but cannot be viewed as bytes.
    flat = tensor.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)
