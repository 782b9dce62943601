"""A worker's connection to torchft's lighthouse, which decides who takes part.

The lighthouse is a program beside the workers. Each worker sends it a heartbeat several times a
second; a quorum is the answer to all workers that have asked for one.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dgc.engines.base import EngineError
from dgc.engines.forking import Inherited
from dgc.engines.meeting import Quorum
from dgc.engines.notice import REACH, Notice
from dgc.engines.watch import LONGEST

log = logging.getLogger('dgc')

HEARTBEAT = 0.2  # seconds between two
RETRY = 0.4  # seconds between two attempts to connect
AGAIN = 0.1  # seconds between two questions that nobody took
SAY_EVERY = 10.0  # seconds between two lines about a lighthouse that does not answer

Inherited().register()  # of torchft's objects in this process


class UnreachableError(EngineError):
    """The lighthouse does not answer."""


@dataclass(frozen=True)
class ElasticSettings:
    """Training whose workers may die, stall and join: ``configs.elastic``, docs/elastic.md.

    Attributes:
        lighthouse: Its ``host:port``.
        worker: The name of this worker in messages and of its folder; None: host and process.
        start_workers: Workers to wait for before the first step.
        start_seconds: Until that wait is given up.
        join_seconds: Between two questions to the lighthouse whether a worker wants to join.
        drop_seconds: Seconds of waiting in one call until the workers go on without those that are
            waited for. None: ten times the slowest of the last 20 steps, and at least 10 s.
        heal_seconds: Until a joining worker must have received the state.
        residual_backup: Steps between two copies of the residual to the next worker. 0: no copies.

    Raises:
        EngineError: For a value that makes no sense.
    """

    lighthouse: str = ''
    worker: str | None = None
    start_workers: int = 1
    start_seconds: float = 600.0
    join_seconds: float = 1.0
    drop_seconds: float | None = None
    heal_seconds: float = 300.0
    residual_backup: int = 0

    def __post_init__(self) -> None:
        least = {'start_workers': 1, 'start_seconds': 0, 'join_seconds': 0, 'heal_seconds': 1}
        least['residual_backup'] = 0
        if self.drop_seconds is not None:
            least['drop_seconds'] = 0
        for name, low in least.items():
            value = getattr(self, name)
            whole = name in ('start_workers', 'residual_backup')
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                kind = 'a whole number' if whole else 'a number of seconds'
                raise EngineError(f'configs.elastic.{name} must be {kind}, got {value!r}')
            if not value >= low or (name == 'drop_seconds' and not value):
                raise EngineError(f'configs.elastic.{name} is too small, got {value}')
            if name in ('drop_seconds', 'heal_seconds') and value > LONGEST:
                raise EngineError(f'configs.elastic.{name} is above {LONGEST:g}, got {value}')
        if self.worker is not None and (not self.worker or not self.worker.isprintable()):
            raise EngineError(f'configs.elastic.worker must be a name, got {self.worker!r}')


class Lighthouse:
    """Heartbeats to the lighthouse, and questions for a quorum.

    Args:
        address: ``host:port`` of the lighthouse.
        worker: The name of this worker.

    Attributes:
        worker: Its id: the name, and a part that differs between processes.
        notice: Of this worker, which others read.

    Raises:
        EngineError: Where torchft is not installed, or the address is none.
    """

    def __init__(self, address: str, worker: str | None = None) -> None:
        os.environ.setdefault('RUST_LOG', 'warn')  # torchft writes lines for every request
        try:
            from torchft.coordination import LighthouseClient
        except ImportError as error:
            raise EngineError(
                f'engine torchft needs the package torchft (pip install "dgc[torchft]"): {error}'
            ) from error
        host, _, port = address.rpartition(':')
        if not (host and port.isdigit()):
            raise EngineError(
                f'configs.elastic.lighthouse = {address!r} is no host:port, such as '
                '127.0.0.1:29510: start one with torchft_lighthouse (docs/elastic.md)'
            )
        self.address = address
        self._server = host.strip('[]'), int(port)
        name = worker or f'{socket.gethostname()}-{os.getpid()}'
        self.worker = f'{name}:{uuid.uuid4().hex[:12]}'
        self._make = LighthouseClient
        self._client: Any = None
        self._host = own_host(*self._server)
        self._store = TCPStore(self._host, 0, is_master=True, wait_for_workers=False)
        self.notice = Notice(self._host)
        self._questions = 0  # so far
        self._stopped = threading.Event()
        # Started with the first question: the lighthouse lets those who ask wait for all that send
        # heartbeats, and this worker may still load its data.
        self._thread: threading.Thread | None = None

    def ask(self, seconds: float) -> Quorum:
        """Return a quorum of this worker and all others that ask.

        Args:
            seconds: Until the question is given up.

        Raises:
            UnreachableError: Where there is no answer in that time.
        """
        self._start_beating()
        self._questions += 1
        number = self._questions
        timeout = timedelta(seconds=seconds)
        try:
            if self._client is None:
                self._client = self._connect()
            answer = self._client.quorum(
                self.worker,
                timeout,
                address=self.notice.address,
                store_address=f'{self._host}:{self._store.port}',
                step=number,  # which the lighthouse passes on
                world_size=1,
                shrink_only=False,
            )
        except (RuntimeError, TimeoutError, OSError) as error:
            self._client = None
            self.give_up(number)  # the lighthouse may count it yet
            text = ' '.join(str(error).split())[:200]
            raise UnreachableError(
                f'the lighthouse at {self.address} (configs.elastic.lighthouse) gives no quorum: '
                f'{text}'
            ) from error
        members = answer.participants
        created = answer.created
        return Quorum(
            tuple(member.replica_id for member in members),
            tuple(member.store_address for member in members),
            tuple(member.address for member in members),
            tuple(member.step for member in members),
            f'{answer.quorum_id}-{created.seconds}-{created.nanos}',
        )

    def give_up(self, question: int) -> None:
        """Tell the others that this worker follows no answer to this question, or earlier ones."""
        self.notice.given_up = question

    def ask_until(self, seconds: float, each: float) -> Quorum:
        """As ``ask``, again and again while there is no answer, and saying so.

        Args:
            seconds: In all.
            each: Of one question.

        Raises:
            UnreachableError: After ``seconds``.
        """
        start = time.monotonic()
        said = start
        while True:
            asked = time.monotonic()
            try:
                return self.ask(each)
            except UnreachableError as error:
                now = time.monotonic()
                if now - start > seconds:
                    raise
                if now - said > SAY_EVERY:
                    said = now
                    log.warning('%s: %s; it is waited for', self.worker, error)
                if now - asked < each:  # the lighthouse is gone
                    time.sleep(AGAIN)

    def _connect(self) -> Any:
        """Return a client. Raises OSError or RuntimeError."""
        # The client itself tries again for REACH where nothing listens, and training waits.
        socket.create_connection(self._server, timeout=REACH).close()
        return self._make(f'http://{self.address}', timedelta(seconds=REACH))

    def _start_beating(self) -> None:
        """Start the heartbeats, unless they have begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name='dgc-heartbeat', daemon=True)
            self._thread.start()
            # A thread within a library at the end would abort the process.
            atexit.register(self.close)

    def _beat(self) -> None:
        """Send heartbeats, on a thread and a connection of their own."""
        client = None
        while not self._stopped.wait(HEARTBEAT):
            try:
                if client is None:
                    client = self._connect()
                client.heartbeat(self.worker, timedelta(seconds=1))
            except Exception:  # the lighthouse is gone: a new one may come
                client = None
                self._stopped.wait(RETRY - HEARTBEAT)

    def close(self) -> None:
        """End the heartbeats, and give up all questions."""
        atexit.unregister(self.close)
        self._stopped.set()
        self.give_up(self._questions)
        self.notice.close()
        if self._thread is not None:
            self._thread.join(timeout=2)


def own_host(host: str, port: int) -> str:
    """Return the address of this machine by which ``host`` reaches it."""
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # connecting a datagram socket sends nothing
            probe.connect(address)
            return str(probe.getsockname()[0])
    return socket.gethostname()
