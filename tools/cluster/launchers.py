"""The commands that each launcher runs on each node: one worker per node."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.cluster.network import SUBNET, SWITCH_ADDRESS, ClusterError

ENTER = Path(__file__).with_name('enter.sh')
LAUNCHERS = ('torchrun', 'horovodrun', 'mpirun')
INTERFACE = 'eth0'
# Variables of an outer launcher, from which a worker would take a wrong rank.
LEFT = re.compile(
    r'(OMPI_COMM_WORLD|PMIX|PMI|SLURM|TORCHELASTIC)_.*|MASTER_(ADDR|PORT)'
    r'|(HOROVOD_)?(LOCAL_|CROSS_|GROUP_|ROLE_)?(RANK|SIZE|WORLD_SIZE)'
)


class Job(NamedTuple):
    """A command to run on a machine.

    machine: name of its namespace.
    rank: of the worker; None for a launcher that starts all workers and tags their output.
    """

    machine: str
    command: list[str]
    environment: dict[str, str]
    rank: int | None


def environment(nodes: int, master: str, port: int, more: Mapping[str, str]) -> dict[str, str]:
    """Environment of workers: that of this process, without the variables of an outer launcher.

    By default there are as many threads as a node has cores to itself, at least one. All libraries
    use the interface eth0.

    Args:
        nodes: number of nodes.
        master: address at which torch.distributed meets under mpirun.
        port: its port.
        more: further variables.
    """
    inherited = {name: value for name, value in os.environ.items() if not LEFT.fullmatch(name)}
    defaults = {
        'OMP_NUM_THREADS': str(max((os.cpu_count() or 1) // nodes, 1)),
        'PYTHONUNBUFFERED': '1',
    }
    network = {
        'GLOO_SOCKET_IFNAME': INTERFACE,
        'NCCL_SOCKET_IFNAME': INTERFACE,
        'HOROVOD_GLOO_IFACE': INTERFACE,
        'MASTER_ADDR': master,  # for torch.distributed under mpirun
        'MASTER_PORT': str(port),
    }
    return {**defaults, **inherited, **network, **more}


def recorded(worker: Sequence[str], failures: Path) -> list[str]:
    """The command of a worker that appends its exit status to a file if it is not 0.

    torchrun ends with 1 for any failure of its worker, and the first of several failures is the
    cause.
    """
    script = '"$@" || { code=$?; echo $code >>"$0"; exit $code; }'
    return ['sh', '-c', script, str(failures), *worker]


def torchrun(names: Sequence[str], worker: Sequence[str], environment: dict[str, str]) -> list[Job]:
    """One agent per node; they meet at the first node's address."""
    words = [
        *(sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node', '1'),
        *('--nnodes', str(len(names)), '--master-addr', environment['MASTER_ADDR']),
        *('--master-port', environment['MASTER_PORT']),
    ]
    return [
        Job(name, [*words, '--node-rank', str(rank), '--no-python', *worker], environment, rank)
        for rank, name in enumerate(names)
    ]


def horovodrun(
    names: Sequence[str], worker: Sequence[str], environment: dict[str, str], port: int
) -> list[Job]:
    """The workers that `horovodrun --gloo` would start over ssh. port: of its rendezvous server."""
    size = str(len(names))
    shared = {
        'HOROVOD_CONTROLLER': 'gloo',
        'HOROVOD_CPU_OPERATIONS': 'gloo',
        'HOROVOD_GLOO_RENDEZVOUS_ADDR': SWITCH_ADDRESS,
        'HOROVOD_GLOO_RENDEZVOUS_PORT': str(port),
        'HOROVOD_SIZE': size,
        'HOROVOD_LOCAL_RANK': '0',
        'HOROVOD_LOCAL_SIZE': '1',
        'HOROVOD_CROSS_SIZE': size,
    }
    return [
        Job(
            name,
            list(worker),
            {
                **environment,
                **shared,
                'HOROVOD_HOSTNAME': name,
                'HOROVOD_RANK': str(rank),
                'HOROVOD_CROSS_RANK': str(rank),
            },
            rank,
        )
        for rank, name in enumerate(names)
    ]


def mpirun(
    switch: str, names: Sequence[str], worker: Sequence[str], environment: dict[str, str]
) -> list[Job]:
    """OpenMPI's mpirun at the switch, with a script that enters namespaces instead of ssh."""
    if shutil.which('mpirun') is None:
        raise ClusterError('mpirun is not installed: apt-get install openmpi-bin libopenmpi-dev')
    settings = {
        'plm_rsh_agent': f'sh {ENTER}',
        'plm_rsh_no_tree_spawn': '1',
        'btl': 'tcp,self',
        'btl_tcp_if_include': f'{SUBNET}.0/24',
        'oob_tcp_if_include': f'{SUBNET}.0/24',
        'mpi_yield_when_idle': '1',  # all nodes share this machine's cores
    }
    words = ['mpirun', '--tag-output', '-bind-to', 'none', '-np', str(len(names))]
    words += ['-H', ','.join(names)]
    for name, value in settings.items():
        words += ['-mca', name, value]
    root = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
    as_root = root if os.geteuid() == 0 else {}
    return [Job(switch, [*words, *worker], {**environment, **as_root}, None)]
