"""Which launcher started this process, by what it left in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """The launcher, and this process's place in the job.

    name: 'horovodrun', 'torchrun', 'mpirun', 'slurm', 'mpiexec', or 'none'.
    rank, size: among all processes of the job; local_rank, local_size: among those of the machine.
    """

    name: str
    rank: int
    size: int
    local_rank: int
    local_size: int


VARIABLES = {  # rank, size, local rank, local size; the first launcher that has set them counts
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
    """The launcher of this process; ``none`` when it was started by hand."""
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
    """Leave in the environment what torch.distributed reads, where torchrun did not."""
    os.environ.setdefault('RANK', str(launcher.rank))
    os.environ.setdefault('WORLD_SIZE', str(launcher.size))
    os.environ.setdefault('LOCAL_RANK', str(launcher.local_rank))
    os.environ.setdefault('LOCAL_WORLD_SIZE', str(launcher.local_size))
    if launcher.local_size == launcher.size:
        os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
    os.environ.setdefault('MASTER_PORT', '29500')
