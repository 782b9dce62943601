"""Attack and kill a server of asynchronous training: `python -m tools.faults.server --help`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.faults.report import FAILED
from tools.faults.server import attacked, kills
from tools.faults.server.attacks import ATTACKS
from tools.harness.cli import Parser, exit_on_signals, log, non_negative
from tools.harness.launch import ROOT
from tools.harness.tables import markdown_table
from utils.files import append_line
from utils.lines import json_lines

PROGRAM = 'tools.faults.server'
EXAMPLES = """\
examples:
    python -m tools.faults.server                   all attacks and 20 kills, 10 to 30 minutes
    python -m tools.faults.server --kills 0 --seconds 20
    python -m tools.faults.server --seconds 0 --kills 20

The server runs with `ulimit -n 1024` and 2 GB of data. Each result is a line of
FOLDER/results.jsonl. Where the command is started again, it leaves out what is there for its seed.
Exit status 1 where the server ended or exceeded its limits under an attack, or its workers did not
train on; or where an update was lost that it had acknowledged before it was killed.
"""
ATTACK, KILL, END = 'attack', 'kill', 'after the kills'  # kinds of lines

Line = dict[str, Any]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    what = 'Attack and kill a server of asynchronous training while workers train, by a seed.'
    parser = Parser(PROGRAM, what, EXAMPLES)
    add = parser.add_argument
    add('--folder', type=Path, default=ROOT / 'build' / 'faults-server',
        help='of results (build/faults-server)')  # fmt: skip
    add('--seconds', type=non_negative, default=15, metavar='S',
        help='of each attack; 0 for none (15)')  # fmt: skip
    add('--kills', type=non_negative, default=20, metavar='N',
        help='kill -9 of the server while workers push (20)')  # fmt: skip
    add('--seed', type=int, default=0, help='of all that is drawn (0)')
    return parser.parse_args(argv)


class Results:
    """The lines of a file of results that have one seed.

    Args:
        folder: Of the file.
        seed: Of the new lines, and of the earlier ones that count.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._seed = folder / 'results.jsonl', seed
        self._lines: list[Line] = [line for line in json_lines(self._path) if line['seed'] == seed]

    def add(self, kind: str, line: Line) -> None:
        """Append a line, and print it on stderr."""
        line = {'kind': kind, 'seed': self._seed, **line}
        self._lines.append(line)
        text = json.dumps(line, ensure_ascii=False)
        log(text)
        append_line(self._path, text)

    def of(self, kind: str) -> list[Line]:
        """The lines of one kind."""
        return [line for line in self._lines if line['kind'] == kind]


def carry_out(arguments: argparse.Namespace, results: Results, folder: Path) -> None:
    """Do what is not among the results yet."""
    done = {line['attack'] for line in results.of(ATTACK)}
    names = [name for name in ATTACKS if name not in done]
    if arguments.seconds and names:
        for line in attacked.attack(folder / ATTACK, arguments.seconds, arguments.seed, names):
            results.add(ATTACK, line)
            explain(line, folder / ATTACK)
    if arguments.kills and not results.of(END):
        for line in kills.kill(folder / KILL, arguments.kills, arguments.seed):
            results.add(END if 'code' in line else KILL, line)
            explain(line, folder / KILL)


def explain(line: Line, folder: Path) -> None:
    """Print the end of the output of all processes where something went wrong."""
    if line['wrong']:
        log((folder / 'output.txt').read_text(errors='replace')[-3000:])


def tables(results: Results) -> str:
    """The tables of docs/reliability.md."""
    found = []
    if attacks := results.of(ATTACK):
        found.append(table(attacked.HEAD, attacks))
    if ends := results.of(END):
        found.append(table(kills.HEAD, ends))
    return '\n\n'.join(found)


def shown(value: object) -> str:
    """An entry of a table; a fraction with two digits."""
    return f'{value:.2g}' if isinstance(value, float) else str(value)


def table(head: Sequence[str], rows: Sequence[Line]) -> str:
    """A table in Markdown, with the entries of ``rows`` that ``head`` names."""
    return markdown_table(head, ([shown(row[name]) for name in head] for row in rows))


def main(argv: Sequence[str]) -> int:
    """Do all faults and print the tables; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    results = Results(arguments.folder, arguments.seed)
    with TemporaryDirectory(prefix='faults') as name:
        carry_out(arguments, results, Path(name))
    print(tables(results), flush=True)
    wrong = [line['wrong'] for kind in (ATTACK, KILL, END) for line in results.of(kind)]
    return FAILED if any(wrong) else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
