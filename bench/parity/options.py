"""The options of a program that trains a workload with each of several algorithms."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.parity.rows import ALL, GROUPS, REPEATED, VARIANTS, rows
from bench.parity.training import SIMULATED, TORCHRUN
from bench.parity.workloads import WORKLOADS, workload
from tools.harness.cli import Parser, check_folder, names, positive
from tools.harness.launch import ROOT
from utils.config import ConfigError
from utils.config.loading import parse_overrides
from utils.naming import by_setting

GROUP_LINES = '\n'.join(f'    {name}: {", ".join(group)}' for name, group in GROUPS.items())
WHAT_THERE_IS = f"""\
workloads: {', '.join(WORKLOADS)}
rows: algorithms of `python train.py --list`; their variants {', '.join(VARIANTS)}; or groups:
    {ALL}: every algorithm of the list
{GROUP_LINES}
A finished run is a line of the results, and is not repeated. It can be interrupted or killed at any
time: the same command goes on from the last checkpoint, at most five minutes back. Each run leaves
its folder and its output in the folder of --runs. Settings may be overridden as in train.py; those
of the composition and of local steps are not applied to rows that have none of that name.
Algorithms with a parameter server train with real processes, one of which serves. Intervals are
those of Student's t, 95 %, over seeds; a row is compared with dense training of the same seeds.
"""


def add_options(parser: Parser, group: str, results: Path, runs: Path) -> None:
    """Add the options.

    Args:
        parser: Of the program.
        group: Names of the rows that are compared by default.
        results, runs: Defaults of these options.
    """
    add, count = parser.add_argument, partial(parser.add_argument, type=positive, metavar='N')
    add('--workload', required=True, metavar='NAME', help='what to train')
    add('--rows', default=group, metavar='NAME,...', help=f'what to compare ({group})')
    count('--seeds', default=3, help=f'of {" and ".join(REPEATED)} (3)')
    count('--other-seeds', default=1, help='of the other rows (1)')
    count('--workers', default=4, help='number of workers (4)')
    add('--engine', choices=[SIMULATED, TORCHRUN], default=SIMULATED,
        help='simulated workers, or one process for each (simulated)')  # fmt: skip
    add('--device', choices=['cpu', 'gpu'], default='cpu', help='to train on (cpu)')
    add('--data', type=Path, default=Path('data'), metavar='FOLDER',
        help='that holds cifar-10-batches-py, ptb, aclImdb, tinyshakespeare (data)')  # fmt: skip
    add('--results', type=Path, default=results, metavar='FILE',
        help=f'JSON, a line for each run ({shown(results)})')  # fmt: skip
    add('--runs', type=Path, default=runs, metavar='FOLDER',
        help=f'where the folders of the runs are made ({runs})')  # fmt: skip
    count('--jobs', default=1, help='runs that are trained at the same time (1)')
    add('--table', action='store_true', help='only print the table of what is measured')


def about(arguments: Namespace) -> str:
    """Return what is trained, by how many workers, and with which settings of the command line."""
    given = ' '.join(f'--{name} {value}' for name, value in arguments.overrides.items())
    text = f'{arguments.what.about}; {arguments.workers} workers'
    return f'{text}; {given}' if given else text


def shown(path: Path) -> str:
    """A path, from the root of the project where it lies there."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def parsed(parser: Parser, argv: Sequence[str]) -> Namespace:
    """Parse and check a command line; an error ends the process with one line.

    Returns:
        The options, with ``overrides``: settings by name; ``what``: the workload; ``compared``: its
        rows.
    """
    arguments, overrides = parser.parse_known_args(argv)
    try:
        arguments.overrides = by_setting(parse_overrides(overrides))
        arguments.what = workload(arguments.workload)
        arguments.compared = list(rows(names(arguments.rows)))
        check_folder('--results', arguments.results)
    except (ConfigError, ValueError) as error:
        parser.error(str(error))
    return arguments
