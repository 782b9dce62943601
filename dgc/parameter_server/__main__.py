"""``python -m dgc.parameter_server``: train.py's server by hand, and keys for it.

It starts train.py as a program, so it is run from a checkout of the project.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from dgc.parameter_server import ServerError, keys

USAGE = """\
usage: python -m dgc.parameter_server --configs FILE ... --bind HOST:PORT [options of train.py]
       python -m dgc.parameter_server --new-key FILE

Serve an asynchronous experiment, for workers that are started by hand:

    python -m dgc.parameter_server --configs configs/digits/cnn.py configs/dgs/dgs.py \\
        --configs.server.workers 4 --bind 127.0.0.1:5555
    python train.py --configs configs/digits/cnn.py configs/dgs/dgs.py \\
        --configs.server.address 127.0.0.1:5555

Beyond this machine both need --configs.server.key FILE, with the same file, which --new-key makes.
Started again with --resume, the server goes on from its last checkpoint. Ends with 0 when all
updates have been made, or on SIGTERM, after a checkpoint; with 2 where it cannot serve.
"""
BAD_INPUT = 2  # exit code


def complain(message: str) -> int:
    """Print the one line that says why the program ends; returns the exit code."""
    print(f'dgc.parameter_server: {message}', file=sys.stderr, flush=True)
    return BAD_INPUT


def main(words: Sequence[str]) -> int:
    """Returns the exit code."""
    if not words or {'-h', '--help'} & {*words}:
        print(USAGE, end='')
        return 0 if words else BAD_INPUT
    if words[0].partition('=')[0] == '--new-key':
        return new_key(words)
    if not any(map(is_bind, words)):
        return complain('--bind HOST:PORT says where to listen, such as 127.0.0.1:5555')
    if importlib.util.find_spec('train') is None:
        return complain('there is no train.py: run this in a checkout of the project')
    named = [f'--configs.server.bind{w[len("--bind") :]}' if is_bind(w) else w for w in words]
    sys.argv = ['train.py', *named]
    runpy.run_module('train', run_name='__main__', alter_sys=True)  # which exits by itself
    return 0


def is_bind(word: str) -> bool:
    """``--bind`` or ``--bind=…``."""
    return word.partition('=')[0] == '--bind'


def new_key(words: Sequence[str]) -> int:
    """Make a key file."""
    name = words[0].partition('=')[2] or ''.join(words[1:2])
    if not name:
        return complain('--new-key needs the name of a file')
    try:
        keys.write(Path(name))
    except ServerError as error:
        return complain(str(error))
    print(f'{name}: give it to the server and to every worker, with --configs.server.key {name}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
