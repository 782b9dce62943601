"""Detect the launcher that started this process from its environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """The launcher of this process, and the process's rank in the job.

    Attributes:
        name: 'horovodrun', 'torchrun', 'mpirun', 'slurm', 'mpiexec', or 'none'.
        rank, size: of this process among all of the job.
        local_rank, local_size: of this process among those on its machine.
    """

    name: str
    rank: int
    size: int
    local_rank: int
    local_size: int


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
        'SLURM_STEP_TASKS_PER_NODE',  # of the first node, such as 4(x2)
    ),
    'mpiexec': ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID', 'MPI_LOCALNRANKS'),  # MPICH, Intel MPI
}


def detect() -> Launcher:
    """Return the launcher of this process; ``none`` for a process that was started without one."""
    for name, (rank, size, local_rank, local_size) in VARIABLES.items():
        if rank in os.environ and size in os.environ:
            workers = int(os.environ[size])
            return Launcher(
                name,
                int(os.environ[rank]),
                workers,
                int(os.environ.get(local_rank, 0)),
                int(os.environ.get(local_size, str(workers)).split('(')[0].split(',')[0]),
            )
    return Launcher('none', 0, 1, 0, 1)


def export_for_torch(launcher: Launcher) -> None:
    """Set the variables that torch.distributed reads, where torchrun has not set them."""
    os.environ.setdefault('RANK', str(launcher.rank))
    os.environ.setdefault('WORLD_SIZE', str(launcher.size))
    os.environ.setdefault('LOCAL_RANK', str(launcher.local_rank))
    os.environ.setdefault('LOCAL_WORLD_SIZE', str(launcher.local_size))
    if launcher.local_size == launcher.size:
        os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
    os.environ.setdefault('MASTER_PORT', '29500')
