"""What carries bytes between workers, and the one thread that may ask it to."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar('T')
Job = tuple[Future[Any], Callable[[], Any]]  # what it comes to, and what is to be done


class EngineError(RuntimeError):
    """The engine cannot be started, or does not fit the launcher that started the process."""


@dataclass
class Traffic:
    """What one worker has sent and received through an engine, and the time that it took.

    sent, received: bytes, as a ring all-reduce, a ring all-gather and a binomial tree move them.
    messages: messages sent.
    seconds: spent inside the engine's calls.
    carried: the same, on the worker's own clock, which in a simulation is a virtual one.
    """

    sent: int = 0
    received: int = 0
    messages: int = 0
    seconds: float = 0.0
    carried: float = 0.0


class CommunicationThread:
    """Runs jobs one after another, in the order in which they were submitted.

    Collectives of one group must not be called from two threads at once: they pair up by order,
    so sums come out wrong, silently. A daemon, so that a process whose peers died can exit.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # None: no more will come
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name='dgc-engine', daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue ``job``. Raises EngineError after ``stop()``: nobody would ever carry it out."""
        if self._stopped:
            raise EngineError('the engine is closed: nothing can be sent any more')
        future: Future[T] = Future()
        self._jobs.put((future, job))
        return future

    def stop(self) -> None:
        """Return once all that was submitted is done, and the thread and what it held are gone."""
        self._stopped = True
        self._jobs.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (queued := self._jobs.get()) is not None:
            future, job = queued
            try:
                future.set_result(job())
            except BaseException as error:  # handed to whoever waits for the result
                future.set_exception(error)


class Engine(ABC):
    """Collectives among ``size`` workers. Tensors may be on any device, of types that the library
    beneath carries: not all carry bool, small integers, or tensors without dimensions.

    Every public call may come from any thread: it is carried out on the engine's own, in the
    order of the calls, which must be the same on every rank.

    rank, size: of this process among all workers.
    local_rank, local_size: among those on this machine.
    """

    name = ''
    has_thread = True  # else jobs run where they are submitted

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.traffic = Traffic()
        self._thread = CommunicationThread() if self.has_thread else None

    @property
    def clock(self) -> float:
        """Seconds since some moment, on this worker's clock."""
        return time.perf_counter()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run ``job``, which may call the engine, on the engine's thread; returns at once."""
        if self._thread is not None:
            return self._thread.submit(job)
        future: Future[T] = Future()
        try:
            future.set_result(job())
        except Exception as error:  # handed to whoever waits for the result
            future.set_exception(error)
        return future

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over the workers of ``tensor``, any shape, in place; returns it."""
        ring = round(2 * (self.size - 1) / self.size * nbytes(tensor))
        return self._call(partial(self._all_reduce, tensor), ring, ring, 2 * (self.size - 1))

    def all_gather(self, tensor: Tensor) -> Tensor:
        """``[P, m]`` from everybody's ``tensor[m]``, the same ``m`` on all; not empty."""
        others = (self.size - 1) * nbytes(tensor)
        return self._call(partial(self._all_gather, tensor), others, others, self.size - 1)

    def send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        """Send ``tensor[m]`` to ``destination`` and receive as many elements from ``source``.

        ``None`` for nobody. Every rank must call it, since some engines have no point-to-point
        messages of their own. Returns what came, or ``None``.
        """
        sent = nbytes(tensor) if destination is not None else 0
        received = nbytes(tensor) if source is not None else 0
        job = partial(self._send_recv, tensor, destination, source)
        return self._call(job, sent, received, int(destination is not None))

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """``root``'s ``tensor``, any shape, in place; returns it."""
        copies = children((self.rank - root) % self.size, self.size)
        received = 0 if self.rank == root else nbytes(tensor)
        job = partial(self._broadcast, tensor, root)
        return self._call(job, copies * nbytes(tensor), received, copies)

    def barrier(self) -> None:
        """Return when every worker has come here."""
        self._call(self._barrier, 0, 0, 0)

    def close(self) -> None:
        """Leave the group, once all that was submitted is done. Nothing may be called afterwards.

        After an error do without: the others may be gone, and this would wait for them.
        """
        if self._thread is not None:
            self._thread.stop()

    def _call(self, job: Callable[[], T], sent: int, received: int, messages: int) -> T:
        if self._thread is not None and not self._thread.is_current:
            return self._thread.submit(partial(self._call, job, sent, received, messages)).result()
        start, clock = time.perf_counter(), self.clock
        result = job()
        self.traffic.seconds += time.perf_counter() - start
        self.traffic.carried += self.clock - clock
        self.traffic.sent += sent
        self.traffic.received += received
        self.traffic.messages += messages
        return result

    @abstractmethod
    def _all_reduce(self, tensor: Tensor) -> Tensor: ...

    @abstractmethod
    def _all_gather(self, tensor: Tensor) -> Tensor: ...

    @abstractmethod
    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None: ...

    @abstractmethod
    def _broadcast(self, tensor: Tensor, root: int) -> Tensor: ...

    @abstractmethod
    def _barrier(self) -> None: ...


def children(place: int, size: int) -> int:
    """To how many others ``place`` passes on what comes down a binomial tree from place 0: to
    ``place + 2^j`` for every 2^j above itself."""
    return sum(place < 1 << j < size - place for j in range(size.bit_length()))


def nbytes(tensor: Tensor) -> int:
    """Bytes of the elements of ``tensor``."""
    return tensor.numel() * tensor.element_size()


def as_bytes(tensor: Tensor) -> Tensor:
    """A flat uint8 copy of any tensor, 0-dimensional and bool ones included."""
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).clone()
