"""What the kernel of this machine reports: free memory, bytes sent by each interface."""

from __future__ import annotations

import math
from pathlib import Path

MEMORY = Path('/proc/meminfo')
INTERFACES = Path('/proc/self/net/dev')


def free_memory() -> float:
    """Bytes of memory that are available on this machine; infinite if the kernel does not say."""
    for line in MEMORY.read_text().splitlines() if MEMORY.exists() else ():
        name, _, value = line.partition(':')
        if name == 'MemAvailable':
            return 1024 * float(value.split()[0])
    return math.inf


def bytes_sent() -> dict[str, int]:
    """Bytes that each interface in the network namespace of this process has sent, by name."""
    counters = {}
    for line in INTERFACES.read_text().splitlines()[2:]:
        name, _, numbers = line.partition(':')
        counters[name.strip()] = int(numbers.split()[8])  # after eight counters of what it received
    return counters
