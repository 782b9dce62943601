"""Damage checkpoints and kill runs: `python -m tools.faults --help`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.faults import report
from tools.faults.plans import Campaign, Counts
from tools.harness.cli import Parser, exit_on_signals, log, non_negative, positive, refuse
from tools.harness.launch import ROOT, unavailable
from tools.harness.pages import write

PROGRAM = 'tools.faults'
PAGE = ROOT / 'docs' / 'reliability.md'
EXAMPLES = """\
examples:
    python -m tools.faults                             all faults, some hours on two cores
    python -m tools.faults --damage 400 --kills 0 --signals 0 --writes 0 --restarts 0
    python -m tools.faults --write                     put the table into docs/reliability.md

Each result is a line of FOLDER/results.jsonl. Where the command is started again it goes on behind
the last line. Exit status 1 where a damaged checkpoint was used, a better one was not, or what a
run leaves at its end differs from what the undisturbed one leaves.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(PROGRAM, 'Damage checkpoints and kill runs of the digits, by a seed.', EXAMPLES)
    add = parser.add_argument
    add('--folder', type=Path, default=ROOT / 'build' / 'faults', help='of results (build/faults)')
    add('--damage', type=non_negative, default=400, metavar='N', help='damaged checkpoints (400)')
    add('--kills', type=non_negative, default=60, metavar='N',
        help='kill -9 at random times, over all launchers (60)')  # fmt: skip
    add('--signals', type=non_negative, default=30, metavar='N',
        help='SIGTERM at random times, over all launchers (30)')  # fmt: skip
    add('--writes', type=non_negative, default=20, metavar='N',
        help='kill -9 while a checkpoint is written (20)')  # fmt: skip
    add('--restarts', type=non_negative, default=10, metavar='N',
        help='runs under torchrun --max-restarts 3 with three kills (10)')  # fmt: skip
    add('--epochs', type=positive, default=14, help='of killed runs (14)')
    add('--steps', type=positive, default=10, help='between their checkpoints (10)')
    add('--seed', type=int, default=0, help='of all that is drawn (0)')
    add('--python', type=program, default=sys.executable, metavar='FILE',
        help='that runs train.py and torchrun (the one that runs this)')  # fmt: skip
    add('--write', action='store_true', help='only write the results into docs/reliability.md')
    return parser.parse_args(argv)


def program(text: str) -> str:
    """Return the path of a program: runs begin in folders of their own."""
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f'{text!r} is no program')
    return str(Path(found).absolute())


def main(argv: Sequence[str]) -> int:
    """Do all faults and print the table; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    if missing := unavailable('horovod'):
        log(f'{missing}: no runs under horovodrun')
    settings = arguments.epochs, arguments.steps, arguments.seed, arguments.python
    campaign = Campaign(arguments.folder, *settings)
    if not arguments.write:
        names = ('damage', 'kills', 'signals', 'writes', 'restarts')
        counts = Counts(*(getattr(arguments, name) for name in names))
        try:
            campaign.carry_out(counts, not missing)
        except RuntimeError as error:
            log(str(error))
            return report.FAILED
    lines = campaign.lines()
    if not lines:
        return refuse(PROGRAM, f'there are no results in {campaign.path}')
    tables = report.tables(lines)
    print(tables)
    if arguments.write:
        write(PAGE, tables, 'faults')
    wrong = [each for line in lines for each in line['wrong']]
    for each in wrong:
        log(each)
    return report.FAILED if wrong else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
