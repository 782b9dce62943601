"""Detect the launcher that started this process from its environment variables."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from dgc.engines.base import EngineError

FORCED = 'DGC_LAUNCHER'  # names the launcher, or 'none', where the other variables mislead
LOOPBACK = re.compile(r'localhost|127\.[\d.]+|::1')


@dataclass(frozen=True)
class Launcher:
    """The launcher of this process, and the process's rank in the job.

    Attributes:
        name: 'horovodrun', 'torchrun', 'mpirun', 'slurm', 'mpiexec', or 'none'. Any program that
            sets RANK and WORLD_SIZE, such as Kubernetes' training operator, counts as 'torchrun'.
        rank, size: of this process among all of the job.
        local_rank, local_size: of this process among those on its machine.
        placed: whether the launcher says which ranks share a machine. If not, local_rank is 0 and
            local_size is 1, and the engine finds out.
    """

    name: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    placed: bool = True

    @property
    def device_index(self) -> int:
        """A number that differs between the ranks of a machine, also where these are unknown."""
        return self.local_rank if self.placed else self.rank


# For each launcher its variables of rank, size, local rank and local size. The first one whose
# variables are set is chosen: horovodrun also sets those of mpirun.
VARIABLES = {
    'horovodrun': (
        'HOROVOD_RANK',
        'HOROVOD_SIZE',
        'HOROVOD_LOCAL_RANK',
        'HOROVOD_LOCAL_SIZE',
    ),
    'torchrun': ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE'),
    'mpirun': (
        'OMPI_COMM_WORLD_RANK',
        'OMPI_COMM_WORLD_SIZE',
        'OMPI_COMM_WORLD_LOCAL_RANK',
        'OMPI_COMM_WORLD_LOCAL_SIZE',
    ),
    'slurm': (
        'SLURM_PROCID',
        'SLURM_STEP_NUM_TASKS',
        'SLURM_LOCALID',
        'SLURM_STEP_TASKS_PER_NODE',  # of every node, such as 4(x2),1
    ),
    'mpiexec': ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID', 'MPI_LOCALNRANKS'),  # MPICH, Intel MPI
}


def detect() -> Launcher:
    """Return the launcher of this process; ``none`` for a process that was started without one.

    An empty variable counts as unset. DGC_LAUNCHER overrides what the variables of launchers say:
    with 'none' a process runs alone within the shell of a Slurm job.

    Raises:
        EngineError: A variable is not a number, a rank is not below its size, or DGC_LAUNCHER names
            no launcher that has set its variables.
    """
    forced = os.environ.get(FORCED) or None
    if forced not in (None, 'none', *VARIABLES):
        raise EngineError(
            f'{FORCED}={forced!r} is no launcher; choose one of {", ".join(VARIABLES)}, none'
        )
    for name, (rank, size, *_) in VARIABLES.items():
        if forced in (None, name) and os.environ.get(rank) and os.environ.get(size):
            return _started_by(name)
    if forced not in (None, 'none'):
        rank, size, *_ = VARIABLES[forced]
        raise EngineError(f'{FORCED}={forced}, which sets {rank} and {size}: they are not set here')
    return Launcher('none', 0, 1, 0, 1)


def _started_by(name: str) -> Launcher:
    """Return the launcher ``name``, whose rank and size are in the environment."""
    rank_name, size_name, local_rank_name, local_size_name = VARIABLES[name]
    rank, size = number(rank_name), number(size_name)
    assert rank is not None and size is not None
    if not 0 <= rank < size:
        raise EngineError(
            f'{rank_name}={rank} and {size_name}={size}: ranks are counted from 0, below the size'
        )
    local_rank = number(local_rank_name)
    local_size = slurm_tasks() if name == 'slurm' else number(local_size_name)
    if local_rank is not None and local_size is not None and local_rank < local_size <= size:
        return Launcher(name, rank, size, local_rank, local_size)
    # torch.distributed needs MASTER_ADDR where ranks are on several machines.
    on_one_machine = name == 'torchrun' and is_loopback(os.environ.get('MASTER_ADDR'))
    if size == 1 or on_one_machine:
        return Launcher(name, rank, size, rank, size)
    return Launcher(name, rank, size, 0, 1, placed=False)


def number(name: str) -> int | None:
    """Return the value of an environment variable; None where it is unset or empty.

    Raises:
        EngineError: It is no whole number.
    """
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise EngineError(
            f'{name}={text!r} in the environment is no whole number: correct or unset it'
        ) from None


def is_loopback(host: str | None) -> bool:
    """Return whether ``host`` is this machine for every rank; None counts as this machine."""
    return not host or LOOPBACK.fullmatch(host) is not None


def slurm_tasks() -> int | None:
    """Return the number of tasks of this step on this node; None where Slurm does not say.

    SLURM_STEP_TASKS_PER_NODE has one number for each node, such as ``2(x3),1`` for 2, 2, 2, 1.
    """
    node, counts = number('SLURM_NODEID'), []
    for part in os.environ.get('SLURM_STEP_TASKS_PER_NODE', '').split(','):
        match = re.fullmatch(r'(\d+)(?:\(x(\d+)\))?', part.strip())
        if match is None:
            return None
        counts.append((int(match[1]), int(match[2] or 1)))
    if node is None:
        return counts[0][0] if len(counts) == 1 else None
    for tasks, nodes in counts:
        if node < nodes:
            return tasks
        node -= nodes
    return None


def first_host(nodes: str) -> str:
    """Return the first host name of a list in Slurm's notation, such as ``gpu[03-07,9],login``."""
    first = re.split(r',(?![^\[]*\])', nodes.strip())[0]
    return re.sub(r'\[(\w+)[^\]]*\]', r'\1', first)


def loopback() -> str:
    """Return the address by which processes of this machine reach each other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        try:
            plain.bind(('127.0.0.1', 0))
        except OSError:
            return '::1'
    return '127.0.0.1'


def export_for_torch(launcher: Launcher) -> None:
    """Set the variables that torch.distributed reads, where torchrun has not set them."""
    for name, value in _for_torch(launcher):
        if not os.environ.get(name):
            os.environ[name] = str(value)


def _for_torch(launcher: Launcher) -> Iterator[tuple[str, int | str]]:
    """Yield name and value of each variable whose value the launcher determines."""
    yield 'RANK', launcher.rank
    yield 'WORLD_SIZE', launcher.size
    if launcher.placed:
        yield 'LOCAL_RANK', launcher.local_rank
        yield 'LOCAL_WORLD_SIZE', launcher.local_size
    nodes = os.environ.get('SLURM_STEP_NODELIST') or os.environ.get('SLURM_JOB_NODELIST')
    if launcher.placed and launcher.local_size == launcher.size:
        yield 'MASTER_ADDR', loopback()
    elif launcher.name == 'slurm' and nodes:
        yield 'MASTER_ADDR', first_host(nodes)  # Slurm starts task 0 there
    yield 'MASTER_PORT', 29500
