"""The properties of one rank: versions, cores, interfaces."""

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
from dgc import Engine, codec, ops
from dgc.engines import Launcher
from dgc.engines.cores import available_cores

SIOCGIFADDR = 0x8915  # the request for an interface's IPv4 address
SOURCES = ('.py', '.cpp', '.h')
YIELDS = 'OMPI_MCA_mpi_yield_when_idle'


@dataclass(frozen=True)
class Host:
    """The properties of one rank.

    name: of its host. local_rank, local_size: among the ranks of that host, which share ``cores``.
    versions: of what must be the same on all ranks, by name.
    busy_waiting: whether it uses a core while it waits for other ranks, as OpenMPI does.
    """

    rank: int
    name: str
    local_rank: int
    local_size: int
    cores: int
    versions: dict[str, str]
    busy_waiting: bool

    def dump(self) -> str:
        """Encode as JSON, for :func:`load`."""
        return json.dumps(asdict(self))


def load(text: str) -> Host:
    """Decode the JSON of :meth:`Host.dump`."""
    return Host(**json.loads(text))


def this_rank(engine: Engine) -> Host:
    """The properties of this rank."""
    return Host(
        engine.rank,
        socket.gethostname(),
        engine.local_rank,
        engine.local_size,
        max(int(available_cores()), 1),
        versions(),
        spins(os.environ),
    )


def versions() -> dict[str, str]:
    """Versions of all software that encodes, decodes or sums messages."""
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
    """Eight hexadecimal digits of a hash of all source files of a package."""
    digest = hashlib.sha256()
    for file in sorted(f for f in package.rglob('*') if f.suffix in SOURCES):
        digest.update(str(file.relative_to(package)).encode() + b'\0' + file.read_bytes())
    return digest.hexdigest()[:8]


def spins(environment: Mapping[str, str]) -> bool:
    """Whether OpenMPI started this process without the setting to yield while it waits."""
    return 'OMPI_COMM_WORLD_SIZE' in environment and environment.get(YIELDS) != '1'


def unreachable(launcher: Launcher, environment: Mapping[str, str]) -> str:
    """The reason why other hosts cannot connect to this one, with the remedy; '' if there is none.

    Debian's installer makes a host's own name resolve to 127.0.1.1. gloo gives other hosts the
    address that the name resolves to, unless an interface is set; Horovod's gloo does so even then.
    """
    named = 'GLOO_SOCKET_IFNAME' in environment and launcher.name != 'horovodrun'
    over_gloo = launcher.name in ('horovodrun', 'torchrun')
    if launcher.size == launcher.local_size or not over_gloo or named:
        return ''
    try:
        resolved = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ''
    if not resolved.startswith('127.'):
        return ''
    horovod = 'set its address in /etc/hosts to the one that other hosts use'
    remedy = horovod if launcher.name == 'horovodrun' else 'set GLOO_SOCKET_IFNAME'
    name = socket.gethostname()
    return f'{name} resolves to {resolved} here, which other hosts cannot reach: {remedy}'


def busiest(before: Mapping[str, int], after: Mapping[str, int], expected: int) -> str:
    """The interface that has sent the most bytes, and its address.

    Args:
        before, after: bytes that each interface has sent, by name.
        expected: bytes that this rank has sent.

    Returns:
        '' if no interface has sent half of ``expected``, as with shared memory or RDMA.
    """
    sent = {name: count - before.get(name, 0) for name, count in after.items()}
    name = max(sent, key=lambda name: sent[name], default='')
    return f'{name} {address(name)}'.strip() if name and sent[name] >= expected / 2 else ''


def address(interface: str) -> str:
    """The IPv4 address of an interface; '' if it has none."""
    request = struct.pack('256s', interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ''
    return socket.inet_ntoa(answer[20:24])
