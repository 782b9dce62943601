"""A thread that runs jobs in order, and the errors of engines."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

T = TypeVar('T')
Job = tuple[Future[Any], Callable[[], Any]]  # the future that receives the result of the call


class EngineError(RuntimeError):
    """The engine cannot be started, or does not fit the launcher that started the process."""


class JobThread:
    """Runs jobs one after another, in the order in which they were submitted.

    It is a daemon, so that a process whose peers died can exit.

    Args:
        name: Of the thread, for debuggers.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # None ends the thread
        self._stopped: str | None = None  # why later jobs are refused
        self._current: Future[Any] | None = None  # that of the job that runs
        self.busy_since: float | None = None  # when that job began, by time.perf_counter
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue ``job``. Raises EngineError after ``stop()``, when no thread would run it."""
        self.check_open()
        future: Future[T] = Future()
        self._jobs.put((future, job))
        return future

    def check_open(self) -> None:
        """Raise EngineError where no more jobs are run, with the reason."""
        if self._stopped is not None:
            raise EngineError(self._stopped)

    def stop(self) -> None:
        """Run all jobs that were submitted, then end the thread.

        Joining it also releases the tensors that its last job refers to.
        """
        self.end(None)

    def end(self, seconds: float | None) -> bool:
        """Accept no job any more; wait until those that were submitted have run.

        Args:
            seconds: How long to wait for them; None without a limit.

        Returns:
            Whether they have run, and the thread has ended.
        """
        self._stopped = 'the engine is closed: nothing can be sent any more'
        self._jobs.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in place of the results of all jobs that are not complete.

        The thread itself cannot leave the call in which it waits: it runs no job after it.
        """
        self._stopped = f'the engine has failed: {error}'
        if self._current is not None:
            self._give(self._current, error=error)
        with contextlib.suppress(queue.Empty):
            while True:
                if (queued := self._jobs.get_nowait()) is not None:
                    self._give(queued[0], error=error)

    def _serve(self) -> None:
        while (queued := self._jobs.get()) is not None:
            self._current, job = queued
            self.busy_since = time.perf_counter()
            try:
                self._give(self._current, result=job())
            except BaseException as error:  # raised again by future.result()
                self._give(self._current, error=error)
            self.busy_since = self._current = None
            del queued, job  # they may refer to tensors

    @staticmethod
    def _give(
        future: Future[Any], result: object = None, error: BaseException | None = None
    ) -> None:
        """Complete a future, unless ``fail`` has done so."""
        with contextlib.suppress(InvalidStateError):
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
