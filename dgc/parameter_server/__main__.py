"""``python -m dgc.parameter_server --new-key FILE``: create a key file for a server and workers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dgc.parameter_server.settings import ServerError, write_key_file

USAGE = """\
usage: python -m dgc.parameter_server --new-key FILE

Create a key file. A server and its workers need the same one when they connect beyond one machine:
train.py takes it as --configs.server.key FILE.

To serve a configuration, for workers that are started by hand, run in a checkout of the project:

    python train.py --configs configs/digits/cnn.py configs/dgs/dgs.py \\
        --configs.server.workers 4 --serve 127.0.0.1:5555
"""
BAD_INPUT = 2  # exit code


def fail(message: str) -> int:
    """Print one line on stderr; returns the exit code."""
    print(f'dgc.parameter_server: {message}', file=sys.stderr, flush=True)
    return BAD_INPUT


def main(words: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    if not words or {'-h', '--help'} & {*words}:
        print(USAGE, end='')
        return 0 if words else BAD_INPUT
    if words[0].partition('=')[0] != '--new-key':
        return fail('a server is started by `python train.py --configs … --serve HOST:PORT`')
    name = words[0].partition('=')[2] or ''.join(words[1:2])
    if not name:
        return fail('--new-key needs the name of a file')
    try:
        write_key_file(Path(name))
    except ServerError as error:
        return fail(str(error))
    print(f'{name}: start the server and every worker with --configs.server.key {name}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
