"""Running the versions of a client."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.clients.program import COMMON, Client, version
from bench.clients.results import REORDERED, SPARSE, WHOLE, Run, Setting
from tools.harness.launch import end

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name('worker.py')
SHOWN = 4000  # characters of a failure


class Measured(NamedTuple):
    """The runs that were completed, and why one was not; '' where all were."""

    runs: list[Run]
    failure: str


def measure(
    client: Client, ranks: int, variants: Sequence[str], setting: Setting, timeout: float
) -> Measured:
    """Run variants of a client, one after another.

    Args:
        client: The program.
        ranks: The world size.
        variants: See Run.
        setting: Of all of them.
        timeout: Seconds after which a command is ended.
    """
    with tempfile.TemporaryDirectory(prefix='clients') as name:
        folder = Path(name)
        programs = write_programs(client, folder)
        jobs = []
        for variant in variants:
            (folder / variant).mkdir()
            variables = {
                **environment(variant, ranks, setting),
                'LOSSES': str(folder / variant),
            }
            program = programs[variant in (WHOLE, SPARSE)]
            jobs.append({'program': str(program), 'environment': variables})
        failure = ''
        for command, variables in commands(client, ranks, jobs, folder):
            failure = failure or run(command, variables, folder, timeout)
        complete = [v for v in variants if len([*(folder / v).glob('*.json')]) == ranks]
        runs = [
            Run(client.name, ranks, *setting, variant, read_losses(folder / variant, ranks))
            for variant in complete
        ]
        return Measured(runs, failure)


def write_programs(client: Client, folder: Path) -> dict[bool, Path]:
    """Write both versions of a client, and what they import. Return them by the use of dgc."""
    (folder / 'dgc').symlink_to(ROOT / 'dgc')
    (folder / COMMON.name).write_text(COMMON.read_text())
    paths = {}
    for with_dgc in (False, True):
        paths[with_dgc] = folder / ('with_dgc.py' if with_dgc else 'without.py')
        paths[with_dgc].write_text(version(client.path.read_text(), with_dgc))
    return paths


def environment(variant: str, ranks: int, setting: Setting) -> dict[str, str]:
    """Return the variables of a run; see programs/common.py."""
    return {
        'STEPS': str(setting.steps),
        'RANKS': str(ranks),
        'DENSITY': str(setting.density if variant == SPARSE else 1.0),
        'WARMUP': str(setting.warmup),
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(free_port()),
        **({'FIRST_BUCKET': '1'} if variant == REORDERED else {}),
    }


def free_port() -> int:
    """Return a port at which no process listens."""
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


def commands(
    client: Client, ranks: int, jobs: Sequence[dict[str, Any]], folder: Path
) -> list[tuple[list[str], dict[str, str]]]:
    """Return the commands that run a client's variants, with their variables: one of all of them
    under torchrun, or one of each where the client starts its own ranks."""
    if client.spawns:
        return [([sys.executable, job['program']], job['environment']) for job in jobs]
    path = folder / 'job.json'
    path.write_text(json.dumps({'libraries': ['torch', *client.libraries], 'runs': jobs}))
    launcher = ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', str(ranks)]
    return [([sys.executable, *launcher, str(WORKER), str(path)], {})]


def run(command: list[str], variables: dict[str, str], folder: Path, timeout: float) -> str:
    """Run a command in a folder; return why it failed, '' where it did not."""
    own = {'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(folder)}
    log = folder / 'log'
    with log.open('wb') as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | own | variables, stdout=output, stderr=output
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return f'it did not end in {timeout:.0f} s'
        finally:
            end(process)
    return f'{log.read_text(errors="replace")[-SHOWN:]}status {status}' if status else ''


def read_losses(folder: Path, ranks: int) -> list[list[float]]:
    """Return the losses that the ranks have written, by rank."""
    return [json.loads((folder / f'{rank}.json').read_text()) for rank in range(ranks)]
