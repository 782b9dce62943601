"""The command line, and errors that are printed once however many ranks there are.

Nothing heavy is imported here: the command line is read before torch is.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from utils.config import ConfigError
from utils.config.loading import check_exists

BAD_INPUT = 2  # exit code
STOPPED = 3  # exit code: training cannot go on
INTERRUPTED = 130  # exit code, as of a shell after Ctrl-C
DECLARATIONS = Path(__file__).parents[1] / 'configs' / '__init__.py'

EXAMPLES = """\
examples:
  train alone, on the digits that scikit-learn ships, everything dense:
    python train.py --configs configs/digits/cnn.py
  two workers, Deep Gradient Compression at 0.1 %, after a warm-up of five epochs:
    horovodrun -np 2 python train.py --configs configs/digits/cnn.py configs/dgc/wm5.py
  the same under another launcher, with half-precision values and another number of epochs:
    torchrun --nproc-per-node 2 train.py --configs configs/digits/cnn.py configs/dgc/wm5.py \\
        configs/dgc/fp16.py --configs.train.num_epochs 30 --suffix .e30
  a server and four workers, asynchronous, sparsified both ways:
    torchrun --nproc-per-node 5 train.py --configs configs/digits/cnn.py configs/dgs/dgs.py
  how 16 workers would have converged, in one process:
    python train.py --configs configs/digits/cnn.py configs/dgc/wm5.py \\
        --configs.engine.name simulated --configs.engine.size 16
  what another run's best checkpoint is worth, in one process, however many workers saved it:
    python train.py --configs configs/digits/cnn.py configs/dgc/wm5.py \\
        --evaluate --resume 'runs/[digits.cnn+dgc.wm5].np2'
"""

OPTIONS = ('--configs', '--devices', '--evaluate', '--help', '--resume', '--runs', '--suffix')
# Left by launchers: those of dgc.engines.launchers, which cannot be asked before torch is imported.
RANKS = {  # rank: local rank
    'HOROVOD_RANK': 'HOROVOD_LOCAL_RANK',
    'RANK': 'LOCAL_RANK',
    'OMPI_COMM_WORLD_RANK': 'OMPI_COMM_WORLD_LOCAL_RANK',
    'SLURM_PROCID': 'SLURM_LOCALID',
    'PMI_RANK': 'MPI_LOCALRANKID',
}
PATIENCE = 3.0  # seconds


class Refused(Exception):
    """Input that cannot be used, refused by all ranks at once.

    rank: the rank that tells the person so.
    """

    def __init__(self, message: str, rank: int = 0) -> None:
        super().__init__(message)
        self.rank = rank


def give_up(code: int, message: str, speaks: bool) -> int:
    """Print the one line that says why the program ends, on the rank that speaks; returns ``code``.

    Launchers end all ranks as soon as one has failed, so the others wait until it has spoken.
    """
    if speaks:
        start = '\n' if code == STOPPED else ''  # some rank's progress bar may stand in the line
        print(f'{start}train.py: {message}', file=sys.stderr, flush=True)
    else:
        time.sleep(PATIENCE)
    return code


def interrupted(speaks: bool) -> NoReturn:
    """End the process after Ctrl-C, on all ranks, each by itself.

    At once: other threads, an engine's or a simulation's, may wait for workers that are gone.
    What is on file is whole.
    """
    if speaks:
        told = 'interrupted: --resume goes on after the last epoch that was saved'
        print(f'\ntrain.py: {told}', file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line, once however many ranks there are."""

    def error(self, message: str) -> NoReturn:
        """End the process. Told once a machine: a file may be missing on one of them only."""
        name = next((name for name in RANKS if name in os.environ), 'RANK')
        rank, local_rank = os.environ.get(name, '0'), os.environ.get(RANKS[name], '0')
        told = message if rank == '0' else f'rank {rank}: {message}'
        raise SystemExit(give_up(BAD_INPUT, told, local_rank == '0'))


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The arguments of train.py, and the overrides of settings among them."""
    parser = Parser(
        prog='train.py',
        description='Train a network on many workers that send as little as they can.',
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        '--configs',
        nargs='+',
        action='extend',
        required=True,
        metavar='FILE',
        help='config files, executed in this order, each after the __init__.py above it',
    )
    parser.add_argument(
        '--configs.NAME',
        metavar='VALUE',
        help='override one setting, such as --configs.train.optimizer.lr 0.05',
    )
    parser.add_argument(
        '--devices',
        choices=['cpu', 'gpu'],
        help='where to compute; by default on GPUs where there are any',
    )
    parser.add_argument(
        '--evaluate',
        action='store_true',
        help='only evaluate the best checkpoint, of this run or with --resume RUN of another',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='',
        metavar='RUN',
        help='go on from the last checkpoint of a run folder; of this run itself without RUN',
    )
    parser.add_argument('--suffix', default='', help='appended to the name of the run folder')
    parser.add_argument('--runs', default='runs', help='where run folders are made (runs)')
    arguments, overrides = parser.parse_known_args(argv)
    if importlib.util.find_spec('torch') is None:
        parser.error('this Python has no torch: `make setup`, then `. .venv/bin/activate`')
    try:
        check_exists(arguments.configs)
    except ConfigError as error:
        parser.error(str(error))
    return arguments, overrides


class Once(logging.Filter):
    """Lets each message through the first time that it comes."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to print ``record``."""
        message = record.getMessage()
        new = message not in self._said
        self._said.add(message)
        return new


def quiet_others(rank: int) -> None:
    """Let warnings through once, on rank 0: they are alike on all ranks, or should be errors."""
    logging.basicConfig(format='%(message)s', level=logging.INFO if rank == 0 else logging.ERROR)
    logging.root.handlers[0].addFilter(Once())
    logging.captureWarnings(True)
