"""Damage checkpoints and kill runs: `python -m tools.faults --help`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from models.digits import DigitsCNN
from tools.faults import damage, kills
from tools.harness.cli import Parser, exit_on_signals, log, non_negative, positive, refuse
from tools.harness.launch import ROOT, environment
from utils import sealed
from utils.lines import untimed

PROGRAM = 'tools.faults'
EXAMPLES = """\
examples:
    python -m tools.faults --damage 400 --kills 0
    python -m tools.faults --damage 0 --kills 20 --launchers alone 'torchrun 2' --epochs 60

Prints the table of docs/reliability.md. Exit status 1 where a damaged checkpoint was used, a better
one was not, or the final tensors of a killed run differ from those of the undisturbed one.
"""
FAILED = 1  # exit code


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(PROGRAM, 'Damage checkpoints and kill runs of the digits, by a seed.', EXAMPLES)
    add = parser.add_argument
    add('--damage', type=non_negative, default=400, metavar='N', help='damaged checkpoints (400)')
    add('--kills', type=non_negative, default=10, metavar='N',
        help='kills and signals for each launcher (10)')  # fmt: skip
    add('--launchers', nargs='+', default=['alone', 'torchrun 2'], metavar='NAME',
        help=f'of killed runs: {"; ".join(kills.LAUNCHERS)} (the first two)')  # fmt: skip
    add('--epochs', type=positive, default=40, help='of killed runs (40)')
    add('--steps', type=positive, default=5, help='between checkpoints of killed runs (5)')
    add('--seed', type=int, default=0, help='of all that is drawn (0)')
    return parser.parse_args(argv)


def damage_rows(folder: Path, count: int, seed: int) -> tuple[list[list[str]], list[str]]:
    """Damage copies of a run's checkpoints; the rows of the table, and what went wrong."""
    words = ['train.py', '--configs', 'configs/digits/cnn.py', 'configs/dgc/wm5.py']
    words += ['--devices', 'cpu', '--runs', str(folder), '--configs.train.num_epochs=3']
    words += ['--configs.train.batch_size=128', '--configs.checkpoint.every_steps=2']
    words += ['--configs.engine.name', 'simulated', '--configs.engine.size', '2']
    subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | environment(),
        check=True,
        stdout=sys.stderr,
    )
    (checkpoints,) = folder.glob('*/checkpoints')
    injected: Counter[str] = Counter()
    found: Counter[str] = Counter()
    faults = []
    for kind, wrong in damage.trials(checkpoints, DigitsCNN(), count, seed):
        injected[kind] += 1
        found[kind] += not wrong
        if wrong:
            faults.append(f'{kind}: {wrong}')
    return [[kind, str(n), str(found[kind])] for kind, n in injected.items()], faults


def result(runs: Path, epochs: int) -> list[object]:
    """The tensors of the last checkpoint of each rank, and the metrics that are not seconds."""
    (folder,) = runs.iterdir()
    files = sorted((folder / 'checkpoints').glob(f'e{epochs - 1:04d}.r*.pth'))
    lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
    metrics = [untimed(line) for line in lines]
    return [*(damage.fingerprint(sealed.read(path)) for path in files), len(files), metrics]


def kill_rows(
    launcher: str, arguments: argparse.Namespace, folder: Path
) -> tuple[list[str], list[str]]:
    """Train undisturbed and with kills; the row of the table, and what went wrong."""
    results, records = [], []
    for name, count in (('straight', 0), ('killed', arguments.kills)):
        (folder / name).mkdir(parents=True)
        settings = arguments.epochs, arguments.steps, count, arguments.seed
        record = kills.run(launcher, folder / name, *settings)
        log(f'{launcher}, {name}: {record}')
        if record.wrong:
            log((folder / name / 'output.txt').read_text(errors='replace')[-3000:])
            return [launcher, str(record.faults), 'no'], [f'{launcher}: {record.wrong[0]}']
        results.append(result(folder / name / 'runs', arguments.epochs))
        records.append(record)
    is_same = results[0] == results[1]
    record = records[1]
    seconds = f'{statistics.median(record.seconds):.0f}' if record.seconds else ''
    row = [launcher, str(record.faults), 'yes' if is_same else 'no', seconds]
    return row, [] if is_same else [f'{launcher}: the results differ']


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ['---'] * len(head), *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def main(argv: Sequence[str]) -> int:
    """Do all faults and print the tables; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    unknown = [each for each in arguments.launchers if each not in kills.LAUNCHERS]
    if unknown:
        known = ', '.join(kills.LAUNCHERS)
        return refuse(PROGRAM, f'--launchers: there is no {unknown[0]!r}, only {known}')
    faults: list[str] = []
    with TemporaryDirectory(prefix='faults') as name:
        if arguments.damage:
            folder = Path(name) / 'damage'
            rows, wrong = damage_rows(folder, arguments.damage, arguments.seed)
            faults += wrong
            head = ['damage', 'checkpoints', 'named, and the last good one used on both ranks']
            print(table(head, rows), end='\n\n', flush=True)
        rows = []
        for launcher in arguments.launchers if arguments.kills else ():
            row, wrong = kill_rows(launcher, arguments, Path(name) / launcher.replace(' ', ''))
            rows.append(row)
            faults += wrong
        if rows:
            head = ['launcher', 'kills and signals', 'same bits at the end', 'seconds to go on']
            print(table(head, rows), flush=True)
    for fault in faults:
        log(fault)
    return FAILED if faults else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
