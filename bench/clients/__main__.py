"""``python -m bench.clients``: programs that people have, with and without dgc."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.clients.program import BY_NAME, COMMON, Client, difference, version
from bench.clients.results import (
    REORDERED,
    SPARSE,
    WHOLE,
    Run,
    append,
    read,
    table,
    variants,
)
from tools.harness.cli import Parser, check_folder, names, positive

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name('worker.py')
DESCRIPTION = """\
Train nine small programs in the style of published ones, as they are (DistributedDataParallel) and
with dgc at density 1 and at a low density, with 2 and 4 ranks. The file of results gets a line for
each run; runs that are in it already are not repeated."""
EXAMPLES = """\
python -m bench.clients --only gan,gpt --ranks 2
python -m bench.clients --diff gan"""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser('bench.clients', DESCRIPTION, EXAMPLES)
    add = made.add_argument
    add('--only', metavar='NAME,...', default='', help=f'of {", ".join(BY_NAME)}')
    add('--ranks', metavar='N,...', default='2,4', help='world sizes (2,4)')
    add('--steps', type=positive, default=100, metavar='N', help='optimizer steps of a run (100)')
    add('--density', type=float, default=0.01, help='the low density (0.01)')
    add('--warmup', type=positive, default=40, help='steps in which it falls from 1 (40)')
    add('--file', type=Path, default=Path('runs/clients.jsonl'), help='(runs/clients.jsonl)')
    add('--timeout', type=float, default=1800.0, help='seconds for the runs of a program (1800)')
    add('--diff', metavar='NAME', help='print the lines that dgc changes in a program, and end')
    return made


def free_port() -> int:
    """Return a port that no process listens at."""
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


def write_programs(client: Client, folder: Path) -> dict[bool, Path]:
    """Write both versions of a client, and what they import. Return them by the use of dgc."""
    (folder / 'dgc').symlink_to(ROOT / 'dgc')
    (folder / COMMON.name).write_text(COMMON.read_text())
    paths = {}
    for with_dgc in (False, True):
        paths[with_dgc] = folder / ('with_dgc.py' if with_dgc else 'without.py')
        paths[with_dgc].write_text(version(client.path.read_text(), with_dgc))
    return paths


def settings(variant: str, ranks: int, steps: int, density: float, warmup: int) -> dict[str, str]:
    """Return the variables of a run; see programs/common.py."""
    return {
        'STEPS': str(steps),
        'RANKS': str(ranks),
        'DENSITY': str(density if variant == SPARSE else 1.0),
        'WARMUP': str(warmup),
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(free_port()),
        **({'FIRST_BUCKET': '1'} if variant == REORDERED else {}),
    }


def commands(
    client: Client, ranks: int, runs: Sequence[dict[str, Any]], folder: Path
) -> list[list[str]]:
    """Return the commands that make the runs of a client: one of all under torchrun."""
    if client.spawns:
        return [[sys.executable, run['program']] for run in runs]
    job = folder / 'job.json'
    job.write_text(json.dumps({'libraries': ['torch', *client.libraries], 'runs': runs}))
    launcher = ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', str(ranks)]
    return [[sys.executable, *launcher, str(WORKER), str(job)]]


def measure(
    client: Client, ranks: int, chosen: Sequence[str], steps: int, density: float, warmup: int,
    timeout: float,
) -> list[Run]:  # fmt: skip
    """Run variants of a client.

    Raises:
        RuntimeError: Where one fails, with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix='clients') as name:
        folder = Path(name)
        programs = write_programs(client, folder)
        runs: list[dict[str, Any]] = []
        for variant in chosen:
            (folder / variant).mkdir()
            values = settings(variant, ranks, steps, density, warmup)
            values['LOSSES'] = str(folder / variant)
            program = programs[variant in (WHOLE, SPARSE)]
            runs.append({'program': str(program), 'environment': values})
        own = os.environ | {'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(folder)}
        for command, run in zip(commands(client, ranks, runs, folder), runs, strict=False):
            done = subprocess.run(
                command,
                cwd=folder,
                env=own | (run['environment'] if client.spawns else {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
            )
            if done.returncode:
                raise RuntimeError(f'{client.name}, {ranks} ranks, failed:\n{done.stdout[-4000:]}')
        return [
            Run(client.name, ranks, steps, variant, [
                json.loads((folder / variant / f'{rank}.json').read_text())
                for rank in range(ranks)
            ])
            for variant in chosen
        ]  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    made = parser()
    arguments = made.parse_args(words)
    chosen = names(arguments.only) or list(BY_NAME)
    for name in [*chosen, *([arguments.diff] if arguments.diff else [])]:
        if name not in BY_NAME:
            made.error(f'there is no program {name!r}: choose of {", ".join(BY_NAME)}')
    if arguments.diff:
        print('\n'.join(difference(BY_NAME[arguments.diff].path.read_text())))
        return 0
    try:
        sizes = [int(size) for size in names(arguments.ranks)]
        check_folder('--file', arguments.file)
    except ValueError as error:
        made.error(str(error))
    failures = []
    for name in chosen:
        for ranks in sizes:
            there = read(arguments.file)
            missing = [v for v in variants(ranks) if (name, ranks, arguments.steps, v) not in there]
            if not missing:
                continue
            print(f'{name}, {ranks} ranks: {", ".join(missing)}', flush=True)
            try:
                append(arguments.file, measure(
                    BY_NAME[name], ranks, missing, arguments.steps, arguments.density,
                    arguments.warmup, arguments.timeout,
                ))  # fmt: skip
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failures.append(str(error))
                print(error, file=sys.stderr, flush=True)
    runs = read(arguments.file)
    for ranks in sizes:
        print(f'\n{ranks} ranks, {arguments.steps} steps\n\n{table(runs, ranks, arguments.steps)}')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
