"""What one rank knows of itself: versions, cores, interfaces."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import dgc
from dgc import codec, ops
from dgc.engines import Launcher

SIOCGIFADDR = 0x8915  # the request for an interface's IPv4 address
SOURCES = ('.py', '.cpp', '.h')
YIELDS = 'OMPI_MCA_mpi_yield_when_idle'


@dataclass(frozen=True)
class Host:
    """One rank, as all others need to know it.

    name: of its host; local_rank, local_size: among the ranks there, which share ``cores``.
    versions: of what must be the same everywhere, by name.
    busy_waiting: whether it spins while it waits for others, as OpenMPI does.
    """

    rank: int
    name: str
    local_rank: int
    local_size: int
    cores: int
    versions: dict[str, str]
    busy_waiting: bool

    def dump(self) -> str:
        """What :func:`load` reads."""
        return json.dumps(asdict(self))


def load(text: str) -> Host:
    """The host that :meth:`Host.dump` wrote."""
    return Host(**json.loads(text))


def ours(launcher: Launcher, rank: int) -> Host:
    """This rank."""
    return Host(
        rank,
        socket.gethostname(),
        launcher.local_rank,
        launcher.local_size,
        len(os.sched_getaffinity(0)),
        versions(),
        spins(os.environ),
    )


def versions() -> dict[str, str]:
    """Of all that writes, reads or sums the messages."""
    try:
        horovod = version('horovod')
    except PackageNotFoundError:
        horovod = 'none'
    return {
        'python': platform.python_version(),
        'torch': torch.__version__,
        'horovod': horovod,
        'dgc': dgc.__version__,
        'codec': str(codec.VERSION),
        'kernels': 'compiled' if ops.is_native(torch.device('cpu')) else 'plain',
        'source of dgc': source_digest(Path(dgc.__file__).parent),
    }


def source_digest(package: Path) -> str:
    """Eight digits that differ where a source file of a package does, whatever its version says."""
    digest = hashlib.sha256()
    for file in sorted(f for f in package.rglob('*') if f.suffix in SOURCES):
        digest.update(str(file.relative_to(package)).encode() + b'\0' + file.read_bytes())
    return digest.hexdigest()[:8]


def spins(environment: Mapping[str, str]) -> bool:
    """Whether OpenMPI started this process and was not told to yield while it waits."""
    return 'OMPI_COMM_WORLD_SIZE' in environment and environment.get(YIELDS) != '1'


def unreachable(launcher: Launcher, environment: Mapping[str, str]) -> str:
    """Why the others would not reach this host, and the remedy; '' where nothing is to be feared.

    Debian's installer has a host's own name lead to 127.0.1.1. gloo tells others the address of its
    name unless an interface is named, and Horovod's gloo does so even then.
    """
    named = 'GLOO_SOCKET_IFNAME' in environment and launcher.name != 'horovodrun'
    over_gloo = launcher.name in ('horovodrun', 'torchrun')
    if launcher.size == launcher.local_size or not over_gloo or named:
        return ''
    try:
        leads_to = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ''
    if not leads_to.startswith('127.'):
        return ''
    horovod = 'have /etc/hosts give it the address that the others know'
    remedy = horovod if launcher.name == 'horovodrun' else 'set GLOO_SOCKET_IFNAME'
    return f'{socket.gethostname()} leads to {leads_to} here, where no other host comes: {remedy}'


def sent_by_interface() -> dict[str, int]:
    """Bytes that each interface has sent, by the kernel."""
    counters = {}
    for line in Path('/proc/net/dev').read_text().splitlines()[2:]:
        name, numbers = line.split(':')
        counters[name.strip()] = int(numbers.split()[8])
    return counters


def busiest(before: Mapping[str, int], after: Mapping[str, int], expected: int) -> str:
    """The interface that has sent most, and its address; '' where none sent half of ``expected``
    bytes, as with shared memory or RDMA."""
    sent = {name: count - before.get(name, 0) for name, count in after.items()}
    name = max(sent, key=lambda name: sent[name], default='')
    return f'{name} {address(name)}'.strip() if name and sent[name] >= expected / 2 else ''


def address(interface: str) -> str:
    """The IPv4 address of an interface, '' where it has none."""
    request = struct.pack('256s', interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ''
    return socket.inet_ntoa(answer[20:24])
