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
from typing import Any, NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dgc.engines.base import EngineError

log = logging.getLogger('dgc')

HEARTBEAT = 0.2  # seconds between two
CONNECT = timedelta(seconds=2)
RETRY = 0.4  # seconds between two attempts to connect
SAY_EVERY = 10.0  # seconds between two lines about a lighthouse that does not answer


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
            if value < low or (name == 'drop_seconds' and not value):
                raise EngineError(f'configs.elastic.{name} is too small, got {value}')
        if self.worker is not None and (not self.worker or not self.worker.isprintable()):
            raise EngineError(f'configs.elastic.worker must be a name, got {self.worker!r}')


class Quorum(NamedTuple):
    """Who takes part, as decided by the lighthouse.

    Attributes:
        members: The workers' ids, in the order of their ranks.
        stores: ``host:port`` of the store of each; that of the first one is used.
        key: Differs between quorums, also of the same members.
    """

    members: tuple[str, ...]
    stores: tuple[str, ...]
    key: str

    def gone(self) -> list[str]:
        """Return the members whose store cannot be reached: they have died since they asked."""
        return [
            member
            for member, store in zip(self.members, self.stores, strict=True)
            if not answers(store)
        ]


class Lighthouse:
    """Heartbeats to the lighthouse, and questions for a quorum.

    Args:
        address: ``host:port`` of the lighthouse.
        worker: The name of this worker.

    Attributes:
        worker: Its id: the name, and a part that differs between processes.

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
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name='dgc-heartbeat', daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread within a library at the end would abort the process

    def ask(self, seconds: float) -> Quorum:
        """Return a quorum of this worker and all others that ask.

        Args:
            seconds: Until the question is given up.

        Raises:
            UnreachableError: Where there is no answer in that time.
        """
        timeout = timedelta(seconds=seconds)
        try:
            if self._client is None:
                self._client = self._connect()
            answer = self._client.quorum(
                self.worker,
                timeout,
                address=self._host,
                store_address=f'{self._host}:{self._store.port}',
                step=0,
                world_size=1,
                shrink_only=False,
            )
        except (RuntimeError, TimeoutError, OSError) as error:
            self._client = None
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
            f'{answer.quorum_id}-{created.seconds}-{created.nanos}',
        )

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
            try:
                return self.ask(each)
            except UnreachableError as error:
                now = time.monotonic()
                if now - start > seconds:
                    raise
                if now - said > SAY_EVERY:
                    said = now
                    log.warning('%s: %s; it is waited for', self.worker, error)
            time.sleep(0.1)

    def _connect(self) -> Any:
        """Return a client. Raises OSError or RuntimeError."""
        # The client itself tries again for CONNECT where nothing listens, and training waits.
        socket.create_connection(self._server, timeout=CONNECT.total_seconds()).close()
        return self._make(f'http://{self.address}', CONNECT)

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
        """End the heartbeats."""
        atexit.unregister(self.close)
        self._stopped.set()
        self._thread.join(timeout=2)


def answers(address: str) -> bool:
    """Return whether something listens at ``host:port``."""
    host, _, port = address.rpartition(':')
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT.total_seconds()).close()
    except OSError:
        return False
    return True


def own_host(host: str, port: int) -> str:
    """Return the address of this machine by which ``host`` reaches it."""
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # connecting a datagram socket sends nothing
            probe.connect(address)
            return str(probe.getsockname()[0])
    return socket.gethostname()
