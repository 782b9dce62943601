"""How a server and its workers find, trust and wait for each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSettings:
    """Seconds are wall-clock seconds. Raises ValueError for those that make no sense together.

    bind: ``host:port`` where a server listens, port 0 for any that is free; under a launcher, by
        default, on this machine's loopback address or, with several machines, its host name's.
    address: ``host:port`` of the server, for a worker that is started by hand.
    workers: how many may train at once; under a launcher, one fewer than processes.
    key: a key file that both sides have; 'unprotected' to do without one beyond this machine.
    heartbeat: seconds between a worker's signs of life.
    timeout: seconds without one after which the worker's place is free.
    patience: seconds without a server, or without a free place, after which a worker gives up.
    checkpoint_seconds: between two checkpoints of the server.
    """

    bind: str | None = None
    address: str | None = None
    workers: int | None = None
    key: str | None = None
    heartbeat: float = 2.0
    timeout: float = 20.0
    patience: float = 120.0
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ('heartbeat', 'timeout', 'patience', 'checkpoint_seconds'):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f'configs.server.{name} must be above 0, got {getattr(self, name)}'
                )
        if self.timeout < 2 * self.heartbeat:
            raise ValueError(
                f'configs.server.timeout = {self.timeout} leaves no time for a late heartbeat: '
                f'set it to at least {2 * self.heartbeat}, or configs.server.heartbeat lower'
            )
        if self.bind is not None and self.address is not None:
            raise ValueError(
                'configs.server.bind and configs.server.address are both set: '
                'a process serves or trains'
            )
