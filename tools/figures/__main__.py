"""``python -m tools.figures``: docs/figures/*.svg and the table in docs/methods.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.harness.cli import Parser

PROGRAM = 'tools.figures'
ROOT = Path(__file__).parents[2]


def main(argv: Sequence[str]) -> int:
    """Write the files; return the exit code."""
    parser = Parser(PROGRAM, "Draw the documents' figures from docs/data, and their table.")
    parser.add_argument(
        '--output', type=Path, default=ROOT / 'docs/figures', metavar='FOLDER',
        help='where the figures are written (docs/figures)',
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    from tools.figures.draw import FIGURES, draw  # matplotlib takes a second to import
    from tools.figures.methods import write

    try:
        for name in FIGURES:
            draw(name, arguments.output / f'{name}.svg')
            print(arguments.output / f'{name}.svg')
    except OSError as error:
        parser.error(f'--output {arguments.output}: {error.strerror}')
    print(write())
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
