"""Try every Python with the oldest and the newest torch: ``python -m tools.matrix --help``."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence

from tools.harness.cli import Parser, log
from tools.harness.tables import align
from tools.matrix.pythons import obtain
from tools.matrix.trial import Outcome, trial
from tools.wheel.build import ROOT, build_wheel

PROGRAM = 'tools.matrix'
PYTHONS = ('3.10', '3.11', '3.12', '3.13', '3.14')
HEADER = ('python', 'torch', 'numpy', 'kernels', 'tests', 'seconds')
EXAMPLE = """\
example: one pair only:
    python -m tools.matrix --pythons 3.12 --torch 2.9.1

Each pair gets an environment of its own in build/matrix (up to 7 GB, most of it torch's CUDA
libraries), which is removed afterwards; its logs stay. Exit code 1 where a pair failed that could
be tried.
"""


def supported() -> list[str]:
    """Return the oldest torch of pyproject.toml, and the one that requirements.lock pins."""
    oldest = re.search(r'"torch>=([\d.]+)"', (ROOT / 'pyproject.toml').read_text())
    newest = re.search(r'^torch==([\d.]+)$', (ROOT / 'requirements.lock').read_text(), re.M)
    assert oldest is not None and newest is not None
    return [full(oldest[1]), newest[1]]


def full(version: str) -> str:
    """Return a version with three numbers, as pip's == wants them: 2.8 → 2.8.0."""
    return version if version.count('.') > 1 else f'{version}.0'


def table(rows: Sequence[Outcome]) -> str:
    """The outcomes, one line each."""
    lines = [
        (row.python, row.torch, row.numpy, row.kernels, row.result, f'{row.seconds:.0f}')
        for row in rows
    ]
    return '\n'.join(align([HEADER, *lines]))


def main(argv: Sequence[str]) -> int:
    """Try every pair and print the table; return the exit code."""
    parser = Parser(
        PROGRAM,
        'Install the project with the oldest and the newest torch that it supports, under every '
        'Python that this machine has or can install, and run some of the tests.',
        EXAMPLE,
    )
    add = parser.add_argument
    add('--pythons', nargs='+', default=PYTHONS, metavar='VERSION', help=' '.join(PYTHONS))
    add('--torch', nargs='+', default=supported(), metavar='VERSION', help=' '.join(supported()))
    add('--keep', action='store_true', help='do not remove the environments')
    arguments = parser.parse_args(argv)
    folder = ROOT / 'build/matrix'
    built = build_wheel(folder / 'wheel')
    rows: list[Outcome] = []
    missing: list[str] = []
    for version in arguments.pythons:
        python = obtain(version)
        if python.path is None:
            missing.append(f'Python {version} cannot be had here: {python.missing}')
            continue
        for torch in map(full, arguments.torch):
            log(f'Python {version}, torch {torch}')
            place = folder / f'python-{version}-torch-{torch}'
            rows.append(trial(python.path, version, torch, built, place))
            log(rows[-1].result)
            if not arguments.keep:
                shutil.rmtree(place / 'venv')
    print(table(rows))
    print('\n'.join(missing))
    return int(not all(row.ok or row.result.startswith('not installed') for row in rows))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
