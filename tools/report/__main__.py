"""``python -m tools.report``: show what runs have measured."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.harness.cli import Parser, check_folder, report
from tools.report.collect import collect, page_data
from tools.report.page import page
from tools.report.serve import Server
from tools.report.tables import write_csv, write_json

PROGRAM = 'tools.report'
DESCRIPTION = """\
Show what runs of train.py have measured, as one HTML page that loads nothing from elsewhere:
quality against epochs, samples, seconds and bytes; the phases of a step; density, residual and
traffic; a table of all runs; two runs side by side; what was predicted beside what was measured."""
EPILOG = """\
examples:
  python -m tools.report runs --out report        writes report/index.html
  python -m tools.report runs --serve             a page that follows runs in progress
  python -m tools.report runs/digits* --png figures --csv runs.csv
Folders that are no runs, and damaged files, are named; the rest is shown. Without an option for
its output, the command writes report/index.html."""
PORT = 8765


def read(paths: Sequence[Path]) -> dict[str, Any]:
    """The data of the page, as they are now."""
    return page_data(*collect(paths))


def serve(arguments: Namespace) -> int:
    """Serve the page until Ctrl-C."""
    host, _, port = arguments.serve.rpartition(':')
    try:
        server = Server(host or '127.0.0.1', int(port), partial(read, arguments.runs))
    except (OSError, OverflowError, ValueError) as error:
        report(PROGRAM, f'--serve {arguments.serve}: {error}: give a free port, as --serve 8766')
        return 2
    print(f'{server.url}  (Ctrl-C ends it)', flush=True)
    with contextlib.suppress(KeyboardInterrupt), server:
        server.serve_forever()
    return 0


def write(arguments: Namespace, data: dict[str, Any]) -> list[Path]:
    """Write what was asked for; returns the paths."""
    written = []
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        path = arguments.out / 'index.html'
        path.write_text(page(data))
        written.append(path)
    if arguments.png is not None:
        from tools.report.figures import write_figures  # matplotlib takes a second to import

        written += write_figures(data, arguments.png)
    for path, writer in ((arguments.json, write_json), (arguments.csv, write_csv)):
        if path is not None:
            writer(data, path)
            written.append(path)
    return written


def parse(argv: Sequence[str]) -> Namespace:
    """Parse the command line."""
    parser = Parser(PROGRAM, DESCRIPTION, EPILOG)
    parser.add_argument(
        'runs', nargs='*', type=Path, default=[Path('runs')], metavar='RUN',
        help='run folders, or folders of them (runs)',
    )  # fmt: skip
    parser.add_argument('--out', type=Path, metavar='FOLDER', help='write FOLDER/index.html')
    parser.add_argument(
        '--serve', nargs='?', const=str(PORT), metavar='[HOST:]PORT',
        help=f'serve the page, which follows runs in progress (127.0.0.1:{PORT})',
    )  # fmt: skip
    parser.add_argument('--png', type=Path, metavar='FOLDER', help='write figures into FOLDER')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the data of the page')
    parser.add_argument('--csv', type=Path, metavar='FILE', help='write a row for each epoch')
    arguments = parser.parse_args(argv)
    outputs = (arguments.out, arguments.png, arguments.json, arguments.csv)
    if arguments.serve is None and not any(outputs):
        arguments.out = Path('report')
    try:
        check_folder('--json', arguments.json)
        check_folder('--csv', arguments.csv)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code: 2 where there is no run, or a file cannot be
    written."""
    arguments = parse(argv)
    data = read(arguments.runs)
    for each in data['skipped']:
        report(PROGRAM, f'{each["path"]} {each["reason"]}: left out')
    if not data['runs'] and arguments.serve is None:
        report(PROGRAM, 'there is no run to show')
        return 2
    for run in data['runs']:
        for note in run['notes']:
            report(PROGRAM, f'{run["name"]}: {note}')
    try:
        for path in write(arguments, data):
            print(path, flush=True)
    except ImportError as error:
        report(PROGRAM, f"--png needs matplotlib ({error}): pip install 'dgc[plot]'")
        return 2
    except (OSError, ValueError) as error:
        report(PROGRAM, str(error))
        return 2
    return 0 if arguments.serve is None else serve(arguments)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
