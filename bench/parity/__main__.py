"""The command line of bench.parity."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from bench.optimizers import read
from bench.parity.rows import GROUPS, REPEATED, Row, rows
from bench.parity.summary import table
from bench.parity.training import (
    SIMULATED,
    TORCHRUN,
    Result,
    Run,
    discard_checkpoints,
    failure,
    planned,
    result,
    train,
)
from bench.parity.workloads import WORKLOADS, Workload, workload
from tools.harness.cli import Parser, check_folder, exit_on_signals, log, names, positive, refuse
from tools.harness.launch import ROOT
from utils.config import ConfigError
from utils.config.loading import parse_overrides
from utils.naming import by_setting

PROGRAM = 'bench.parity'
GROUP_LINES = '\n'.join(f'    {name}: {", ".join(group)}' for name, group in GROUPS.items())
EXAMPLES = f"""\
examples: the published algorithms on ResNet-20 with four simulated workers, in the background:
    nice -n 19 python -m bench.parity --workload resnet20 --data data
  two algorithms with one seed each, for fewer epochs and at another density:
    python -m bench.parity --workload digits --rows dense,gtopk --seeds 1 \\
        --configs.train.num_epochs 10 --configs.train.compression.compress_ratio 0.01
  the table of what is measured so far:
    python -m bench.parity --workload resnet20 --table

workloads: {', '.join(WORKLOADS)}
rows: algorithms of `python train.py --list`, or groups of rows:
{GROUP_LINES}
A finished run is a line of the results, and is not repeated. It can be interrupted or killed at any
time: the same command goes on from the last checkpoint, at most five minutes back. Each run leaves
its folder and its output in the folder of --runs. Settings may be overridden as in train.py; those
of the composition are not applied to rows that do not compress. Algorithms with a parameter server
train with real processes, one of which serves. Intervals are those of Student's t, 95 %, over
seeds; a row is compared with dense training of the same seeds.
"""


def parse(argv: Sequence[str]) -> Namespace:
    """Parse and check the command line."""
    parser = Parser(
        PROGRAM,
        'Train a workload with each of several algorithms at equal epochs, and compare their '
        'metric, the bytes that a worker sends per step, and the density.',
        EXAMPLES,
    )
    add, count = parser.add_argument, partial(parser.add_argument, type=positive, metavar='N')
    add('--workload', required=True, metavar='NAME', help='what to train')
    add('--rows', default='published', metavar='NAME,...', help='what to compare (published)')
    count('--seeds', default=3, help=f'of {" and ".join(REPEATED)} (3)')
    count('--other-seeds', default=1, help='of the other rows (1)')
    count('--workers', default=4, help='number of workers (4)')
    add('--engine', choices=[SIMULATED, TORCHRUN], default=SIMULATED,
        help='simulated workers, or one process for each (simulated)')  # fmt: skip
    add('--data', type=Path, default=Path('data'), metavar='FOLDER',
        help='that holds cifar-10-batches-py, ptb, aclImdb, tinyshakespeare (data)')  # fmt: skip
    add('--results', type=Path, default=ROOT / 'docs' / 'data' / 'parity.jsonl', metavar='FILE',
        help='JSON, a line for each run (docs/data/parity.jsonl)')  # fmt: skip
    add('--runs', type=Path, default=Path('runs/parity'), metavar='FOLDER',
        help='where the folders of the runs are made (runs/parity)')  # fmt: skip
    count('--jobs', default=1, help='runs that are trained at the same time (1)')
    add('--table', action='store_true', help='only print the table of what is measured')
    arguments, overrides = parser.parse_known_args(argv)
    try:
        arguments.overrides = by_setting(parse_overrides(overrides))
        arguments.what = workload(arguments.workload)
        arguments.compared = list(rows(names(arguments.rows)))
        check_folder('--results', arguments.results)
    except (ConfigError, ValueError) as error:
        parser.error(str(error))
    return arguments


def plan(arguments: Namespace) -> list[Run]:
    """Return what the command line asks for: the first seed of all rows, then the next one."""
    what: Workload = arguments.what
    possible: list[Row] = [row for row in arguments.compared if row.name not in what.impossible]
    counts = {
        row.name: arguments.seeds if row.name in REPEATED else arguments.other_seeds
        for row in possible
    }
    data, runs = arguments.data.absolute(), []
    for seed in range(max(counts.values(), default=0)):
        for row in possible:
            if seed < counts[row.name]:
                about = arguments.workload, what, row, seed, arguments.workers, arguments.engine
                runs.append(planned(*about, data, arguments.overrides))
    return runs


def known(runs: Sequence[Run], results: Path) -> dict[str, Result]:
    """Return the results of a file that are those of ``runs``, by the name of the run."""
    lines, found = read(results), {}
    for run in runs:
        asked = run.asked.items()
        line = next((each for each in lines if asked <= each.items()), None)
        if line is not None:
            found[run.name] = line
    return found


def measure(runs: Sequence[Run], arguments: Namespace) -> tuple[dict[str, Result], dict[str, str]]:
    """Train what the file of results does not have yet.

    Returns:
        The results of ``runs`` by the name of the run, and what failed: reasons by row.
    """
    folder, metric = arguments.runs.absolute(), arguments.what.metric.name
    results, failed = known(runs, arguments.results), {}
    missing = [] if arguments.table else [run for run in runs if run.name not in results]
    folder.mkdir(parents=True, exist_ok=True)
    with closing(train(missing, folder, arguments.jobs)) as training:
        for run, status in training:
            if status:
                failed[run.row] = failure(run, folder, status)
                log(f'{run.name}: {failed[run.row]}')
                continue
            results[run.name] = line = result(run, folder, metric)
            with arguments.results.open('a') as file:
                file.write(json.dumps(line) + '\n')
            discard_checkpoints(run, folder)
            log(f'{run.name}: {metric}={line["value"]:g}, {len(results)} of {len(runs)} runs')
    return results, failed


def report(results: Mapping[str, Result], failed: Mapping[str, str], arguments: Namespace) -> str:
    """Return the table, after a line that says what was trained."""
    what: Workload = arguments.what
    order = [row.name for row in arguments.compared]
    title = f'{what.about}; {arguments.workers} workers'
    given = ' '.join(f'--{name} {value}' for name, value in arguments.overrides.items())
    lines = table(results.values(), what.metric, {**what.impossible, **failed}, order)
    return f'{title}{"; " + given if given else ""}\n\n{lines}'


def main(argv: Sequence[str]) -> int:
    """Train, and print the table; return the exit code, 1 where a run failed."""
    arguments = parse(argv)
    exit_on_signals()
    try:
        results, failed = measure(plan(arguments), arguments)
    except OSError as error:
        return refuse(PROGRAM, str(error))
    print(report(results, failed, arguments))
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
