"""Where a step's time goes on this machine: `python -m bench.step --help`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench import options, report
from bench.launch import ROOT, TIMED_OUT, environment, launches, measure
from bench.rows import LAUNCHERS
from bench.spec import write_json

PROGRAM = 'bench.step'
ROWS = 'compute,dense,dgc'
PATIENCE = 10.0  # seconds for launchers that are asked to end, and end their workers
EXAMPLES = f"""\
example:
    python -m bench.step --model resnet20 --workers 2 --json after.json
the same of another version of dgc, from a checkout of it:
    PYTHONPATH=../before python -m bench.step --model resnet20 --workers 2 --json before.json

{report.LEGEND}
Exit status: 2 for what cannot be measured, 1 where no row could be.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = options.parser(
        PROGRAM,
        'Measure the phases of a training step, with workers on this machine and no network '
        f'between them. Rows: {ROWS}, or what --only names.',
        EXAMPLES,
    )
    parser.set_defaults(only=ROWS, model='resnet20')
    add = parser.add_argument
    add('--workers', type=options.positive, default=2, metavar='N', help='how many (2)')
    add('--launcher', choices=LAUNCHERS.values(), default='torchrun', help='(torchrun)')
    arguments = parser.parse_args(argv)
    engines = tuple(e for e, launcher in LAUNCHERS.items() if launcher == arguments.launcher)
    arguments.rows = options.chosen(parser, arguments, engines)
    return arguments


def start(
    launcher: str, workers: int, timeout: float, folder: Path, module: str = 'bench.worker'
) -> int:
    """Run the workers that ``folder`` has a spec for; returns the exit status."""
    # Python looks in the current folder first, so there they find that dgc and nothing else of it.
    (folder / 'dgc').symlink_to(package())
    words = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    words += ['--nproc-per-node', str(workers), '-m']
    if launcher == 'horovodrun':
        horovodrun = Path(sys.executable).with_name('horovodrun')
        words = [str(horovodrun), '--gloo', '-np', str(workers), sys.executable, '-m']
    process = subprocess.Popen(
        [*words, module, 'spec.json'],
        cwd=folder,
        env=os.environ | environment(),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        end(process)
    return status if status >= 0 else 128 - status


def package() -> Path:
    """The folder of the dgc to be measured: the first on PYTHONPATH, else the one beside us."""
    paths = [*filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep)), str(ROOT)]
    return next(path for path in map(Path, paths) if (path / 'dgc').is_dir()).absolute() / 'dgc'


def end(launcher: subprocess.Popen[bytes]) -> None:
    """Have a launcher end its workers, and itself."""
    launcher.terminate()
    try:
        launcher.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments = parse(argv)
    options.end_tidily()
    about = {'model': arguments.model, 'batch': arguments.batch, 'nodes': arguments.workers}
    results: list[report.Result] = []
    for rows in launches(arguments.rows):
        run = partial(start, arguments.launcher, arguments.workers, arguments.timeout)
        told, outcomes = measure(options.spec(arguments), rows, run)
        common = {**about, 'rate': 'none', **told}
        results += [report.result(row, common, outcomes[row.name]) for row in rows]
    results = report.compare(report.in_order(results))
    if arguments.json is not None:
        write_json(arguments.json, results)
    print(f'{report.title(results)}\n{report.table(results)}')
    return int(all('error' in each for each in results))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
