"""Command lines of benchmarks and tools. Imports only the standard library, so that it is fast."""

from __future__ import annotations

import argparse
import signal
import sys
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

BAD_INPUT = 2  # exit code
WIDTH = 100  # columns of a description


class Parser(argparse.ArgumentParser):
    """A parser of ``python -m PROGRAM`` that reports an error in one line, with exit code 2.

    Args:
        program: module that is run.
        description: what the program does; wrapped, unless it has line breaks of its own.
        epilog: examples and exit codes, printed as they are.
    """

    def __init__(self, program: str, description: str, epilog: str = '') -> None:
        wrapped = description if '\n' in description else textwrap.fill(description, WIDTH)
        super().__init__(
            prog=f'python -m {program}',
            description=wrapped,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.program = program

    def error(self, message: str) -> NoReturn:
        """Print the message in one line and end the process."""
        raise SystemExit(refuse(self.program, message))


def refuse(program: str, message: str) -> int:
    """Print on stderr, in one line, why the program ends; return the exit code for bad input."""
    report(program, message)
    return BAD_INPUT


def report(program: str, message: str) -> None:
    """Print a message of a program on stderr, in one line."""
    print(f'{program}: {message}', file=sys.stderr, flush=True)


def log(text: str) -> None:
    """Print a line on stderr, after the time of day."""
    print(f'{time.strftime("%H:%M:%S")} {text}', file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """Convert an option to a whole number of at least 1."""
    return at_least(1, text)


def non_negative(text: str) -> int:
    """Convert an option to a whole number of at least 0."""
    return at_least(0, text)


def at_least(least: int, text: str) -> int:
    """Convert an option to a whole number of at least ``least``."""
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f'{text} is less than {least}')
    return number


def names(text: str) -> list[str]:
    """Split a comma-separated option such as ``--only dgc,ddp``."""
    return [name.strip() for name in text.split(',') if name.strip()]


def check_name(option: str, kind: str, name: str, known: Iterable[str]) -> None:
    """Raise ValueError for a name of an option that is not known, with those that are."""
    known = list(known)
    if name not in known:
        raise ValueError(f'{option}: there is no {kind} {name!r}: there are {", ".join(known)}')


def check_folder(option: str, file: Path | None) -> None:
    """Raise ValueError if the folder of an output file does not exist."""
    if file is not None and not file.absolute().parent.is_dir():
        raise ValueError(f'{option}: there is no folder {file.absolute().parent}')


def exit_on_signals() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into SystemExit, so that context managers end workers."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP: leave it so
            signal.signal(number, lambda number, _: sys.exit(128 + number))
