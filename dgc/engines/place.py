"""Which ranks share a machine, where the launcher does not say."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Protocol

from dgc.engines.launchers import Launcher


class Store(Protocol):
    """The part of a torch.distributed store that is used here."""

    def set(self, key: str, value: str) -> None:
        """Store a value."""

    def get(self, key: str) -> bytes:
        """Return a value, once it is there."""


def machine() -> str:
    """Return a text that is the same for processes that share cores and a loopback interface.

    Two containers of one host differ in their network namespace, two hosts in their boot id.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path('/proc/sys/kernel/random/boot_id').read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path('/proc/self/ns/net').readlink()))
    return ' '.join(parts)


def place(launcher: Launcher, store: Store, rank: int, size: int) -> tuple[int, int]:
    """Return the local rank and local size of ``rank`` of a process group of ``size`` ranks.

    They are the launcher's, if it started this group and knows them. Otherwise each rank's machine
    is read from the store, where every rank writes its own: some ranks may know and others not.
    """
    store.set(f'dgc/machine/{rank}', machine())
    if launcher.placed and (launcher.rank, launcher.size) == (rank, size):
        return launcher.local_rank, launcher.local_size
    machines = [store.get(f'dgc/machine/{other}') for other in range(size)]
    here = [other for other in range(size) if machines[other] == machines[rank]]
    return here.index(rank), len(here)
