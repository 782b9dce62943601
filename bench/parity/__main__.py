"""The command line of bench.parity."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.parity.measuring import measure, plan, reasons
from bench.parity.options import WHAT_THERE_IS, about, add_options, parsed
from bench.parity.summary import table
from bench.parity.training import Result
from bench.parity.workloads import Workload
from tools.harness.cli import Parser, exit_on_signals, refuse
from tools.harness.launch import ROOT

PROGRAM = 'bench.parity'
EXAMPLES = f"""\
examples: the published algorithms on ResNet-20 with four simulated workers, in the background:
    nice -n 19 python -m bench.parity --workload resnet20 --data data
  two algorithms with one seed each, for fewer epochs and at another density:
    python -m bench.parity --workload digits --rows dense,gtopk --seeds 1 \\
        --configs.train.num_epochs 10 --configs.train.compression.compress_ratio 0.01
  the table of what is measured so far:
    python -m bench.parity --workload resnet20 --table

{WHAT_THERE_IS}"""


def parse(argv: Sequence[str]) -> Namespace:
    """Parse and check the command line."""
    parser = Parser(
        PROGRAM,
        'Train a workload with each of several algorithms at equal epochs, and compare their '
        'metric, the bytes that a worker sends per step, and the density.',
        EXAMPLES,
    )
    add_options(parser, 'published', ROOT / 'docs/data/parity.jsonl', Path('runs/parity'))
    return parsed(parser, argv)


def report(results: Mapping[str, Result], failed: Mapping[str, str], arguments: Namespace) -> str:
    """Return the table, after a line that says what was trained."""
    what: Workload = arguments.what
    order = [row.name for row in arguments.compared]
    lines = table(results.values(), what.metric, {**reasons(arguments), **failed}, order)
    return f'{about(arguments)}\n\n{lines}'


def main(argv: Sequence[str]) -> int:
    """Train, and print the table; return the exit code, 1 where a run failed."""
    arguments = parse(argv)
    exit_on_signals()
    try:
        results, failed = measure(plan(arguments), arguments)
    except (OSError, ValueError) as error:
        return refuse(PROGRAM, str(error))
    print(report(results, failed, arguments))
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
