"""Horovod's rendezvous server, for workers that are started without horovodrun.

    python rendezvous.py HOST …

prints its port and serves one worker per host, until its standard input is closed.
"""

from __future__ import annotations

import sys


def main(hosts: list[str]) -> None:
    """Serve until the other end of standard input is closed."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(','.join(f'{h}:1' for h in hosts)), len(hosts)))
    print(port, flush=True)
    sys.stdin.read()


if __name__ == '__main__':
    main(sys.argv[1:])
