"""A lighthouse of torchft with the settings of docs/elastic.md: the argument is its port."""

from __future__ import annotations

import signal
import sys

SETTINGS = {
    'min_replicas': 1,
    'join_timeout_ms': 2000,
    'quorum_tick_ms': 50,
    'heartbeat_timeout_ms': 2000,
}


def main(port: str) -> None:
    """Serve until a signal."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind=f'127.0.0.1:{port}', **SETTINGS)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.shutdown()


if __name__ == '__main__':
    main(sys.argv[1])
