"""torchft's lighthouse within the process of a test."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault('RUST_LOG', 'warn')  # before torchft is imported


class Lighthouse:
    """torchft's lighthouse, which can be stopped and started again at the same port."""

    def __init__(self) -> None:
        self._server: Any = None
        self.port = 0
        self.start()

    def start(self) -> None:
        from torchft.coordination import LighthouseServer

        self._server = LighthouseServer(
            bind=f'127.0.0.1:{self.port}',
            min_replicas=1,
            join_timeout_ms=2000,
            quorum_tick_ms=10,
            heartbeat_timeout_ms=1000,
        )
        self.port = int(self._server.address().rpartition(':')[2])

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
        self._server = None
