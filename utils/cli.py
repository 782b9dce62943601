"""The command line of train.py, and errors that are printed once however many ranks there are.

Nothing heavy is imported here: the command line is parsed before torch is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from utils import terminal
from utils.config import ConfigError
from utils.config.loading import check_exists
from utils.naming import MAX_NAME, MAX_SUFFIX, check_part

FAILED = 1  # exit code: an error in the code of a model, of data, or of this program
BAD_INPUT = 2  # exit code
STOPPED = 3  # exit code: training cannot continue
INTERRUPTED = 130  # exit code, as of a shell after Ctrl-C
TERMINATED = 143  # exit code, as of a shell after SIGTERM; also after SIGUSR1
EPOCHS, AVERAGE = 'epochs', 'average:'  # of --evaluate; a number follows the latter
AUTO = 'auto'  # of --resume: from the last checkpoint if there is one, else from the start
DECLARATIONS = Path(__file__).parents[1] / 'configs' / '__init__.py'

EXAMPLES = """\
examples:
  train alone, on the digits that scikit-learn ships, without compression:
    python train.py --configs configs/digits/cnn.py
  two workers, Deep Gradient Compression at 0.1 %, after a warm-up of five epochs:
    horovodrun -np 2 python train.py --configs configs/digits/cnn.py configs/dgc/wm5.py
  the same under another launcher, with half-precision values and another number of epochs:
    torchrun --nproc-per-node 2 train.py --configs configs/digits/cnn.py configs/dgc/wm5.py \\
        configs/dgc/fp16.py --configs.train.num_epochs 30 --suffix .e30
  a server and four workers, asynchronous, sparsified in both directions:
    torchrun --nproc-per-node 5 train.py --configs configs/digits/cnn.py configs/dgs/dgs.py
  a server for workers that are started by hand, and one of the workers:
    python train.py --configs configs/digits/cnn.py configs/dgs/dgs.py \\
        --configs.server.workers 4 --serve 127.0.0.1:5555
    python train.py --configs configs/digits/cnn.py configs/dgs/dgs.py \\
        --configs.server.address 127.0.0.1:5555
  one command for the first start, restarts by the launcher and a job that is queued again:
    torchrun --nproc-per-node 2 --max-restarts 3 train.py --configs configs/digits/cnn.py \\
        configs/dgc/wm5.py --resume auto --configs.checkpoint.every_minutes 10
  simulate 16 workers in one process, to see how they converge:
    python train.py --configs configs/digits/cnn.py configs/dgc/wm5.py \\
        --configs.engine.name simulated --configs.engine.size 16
  evaluate the best checkpoint of another run, in one process, whatever its number of workers:
    python train.py --configs configs/digits/cnn.py configs/dgc/wm5.py \\
        --evaluate --resume runs/digits.cnn+dgc.wm5.np2
  print every setting of an experiment as it would be trained, without training:
    python train.py --configs configs/digits/cnn.py configs/dgc/wm5.py --show
  list all algorithms, config files and settings:
    python train.py --list
"""

OPTIONS = (
    *('--configs', '--devices', '--evaluate', '--help', '--list'),
    *('--name', '--resume', '--runs', '--serve', '--show', '--suffix'),
)
# Environment variables of the launchers in dgc.engines.launchers, which imports torch.
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

    Attributes:
        rank: The rank that prints the message.
        code: The exit code.
    """

    code = BAD_INPUT

    def __init__(self, message: str, rank: int = 0) -> None:
        super().__init__(message)
        self.rank = rank


class Stopped(Refused):
    """Training that cannot continue, ended by all ranks at once."""

    code = STOPPED


def tell_launcher(message: str) -> None:
    """Leave the line where torchrun looks for the reason of a failure, which it prints last.

    torchrun and horovodrun print tracebacks of their own after a worker has failed, which no
    worker can prevent; torchrun's then ends with this line.
    """
    path = os.environ.get('TORCHELASTIC_ERROR_FILE')
    if path:
        extra = {'timestamp': str(int(time.time()))}
        content = {'message': {'message': f'train.py: {message}', 'extraInfo': extra}}
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps(content))


def give_up(code: int, message: str, prints: bool) -> int:
    """Print the line that says why the program ends, if this rank prints; returns ``code``.

    Launchers end all ranks as soon as one has failed, so the other ranks wait until the message is
    printed.
    """
    if prints:
        terminal.erase()
        start = '\n' if code == STOPPED else ''  # behind another rank's line of progress
        with contextlib.suppress(OSError):  # the disk under a log file may be full
            print(f'{start}train.py: {message}', file=sys.stderr, flush=True)
        tell_launcher(message)
    else:
        time.sleep(PATIENCE)
    return code


def print_whole(text: str) -> None:
    """Print a text that somebody may read in part: ``| head`` closes the pipe before its end."""
    with contextlib.suppress(BrokenPipeError):  # what is left is given up in ``flush``
        print(text, flush=True)


def flush(code: int) -> int:
    """Write what is buffered; returns ``code``, or STOPPED in place of 0 where that fails."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            code = code or STOPPED
    return code


def end(code: int) -> NoReturn:
    """End the process with ``code``, also where its output cannot be written any more.

    Python would write what is buffered once more, print a traceback, and end with code 120. After a
    signal the process ends at once: releasing all modules takes Python and torch a second of a
    core, and launchers soon kill those whom they have asked to end.
    """
    if code in (INTERRUPTED, TERMINATED):
        end_at_once(code)
    sys.exit(flush(code))


def end_at_once(code: int) -> NoReturn:
    """End the process: threads of an engine or a simulation may wait for workers that are gone.

    Checkpoints on disk are complete.
    """
    os._exit(flush(code))


def interrupted(prints: bool) -> NoReturn:
    """End the process after Ctrl-C, on each rank by itself."""
    if prints:
        message = 'interrupted: --resume continues from the last checkpoint, if there is one'
        print(f'\ntrain.py: {message}', file=sys.stderr)
    end_at_once(INTERRUPTED)


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, once however many ranks there are."""

    def error(self, message: str) -> NoReturn:
        """End the process. One rank per machine prints: a file may be missing on one of them."""
        alone = os.environ.get('DGC_LAUNCHER') == 'none'
        name = next((name for name in RANKS if os.environ.get(name) and not alone), '')
        rank = os.environ[name] if name else '0'
        local_rank = (os.environ.get(RANKS[name]) if name else None) or '0'
        text = message if rank == '0' else f'rank {rank}: {message}'
        raise SystemExit(give_up(BAD_INPUT, text, local_rank == '0'))


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line of train.py.

    Returns:
        The options, and the words that override settings, such as
        ['--configs.train.num_epochs', '5'].
    """
    parser = Parser(
        prog='train.py',
        description='Train a network on several workers that exchange compressed gradients.',
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        '--configs',
        nargs='+',
        action='extend',
        metavar='FILE',
        help='config files, executed in this order, each after the __init__.py above it',
    )
    parser.add_argument(
        '--configs.NAME',
        metavar='VALUE',
        help='override one setting, such as --configs.train.optimizer.lr 0.05',
    )
    parser.add_argument(
        '--list',
        action='store_true',
        help='list all algorithms, config files and settings with their defaults, and end',
    )
    parser.add_argument(
        '--show',
        action='store_true',
        help='print the resolved configuration and the name of the run, and end',
    )
    parser.add_argument(
        '--devices',
        choices=['cpu', 'gpu'],
        help='where to compute; by default on GPUs if torch finds any',
    )
    parser.add_argument(
        '--evaluate',
        nargs='?',
        const='best',
        default=False,
        type=evaluated,
        metavar='WHAT',
        help='only evaluate, of this run or with --resume RUN of another: the best checkpoint '
        "(best), that of each epoch (epochs), or the average of the last N epochs' (average:N)",
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='',
        metavar='RUN',
        help='continue from the last checkpoint of a run folder; without RUN, of this run; with '
        "'auto', of this run if there is one, else begin it in the same folder",
    )
    parser.add_argument(
        '--serve',
        metavar='HOST:PORT',
        help='be the server of asynchronous training (short for --configs.server.bind)',
    )
    parser.add_argument('--suffix', default='', help='appended to the name of the run folder')
    parser.add_argument(
        '--name', help='name of the run folder, in place of one from files, settings and suffix'
    )
    parser.add_argument('--runs', default='runs', help='where run folders are made (runs)')
    arguments, overrides = parser.parse_known_args(argv)
    if not arguments.configs and not arguments.list:
        parser.error('the following arguments are required: --configs (--list shows the files)')
    check_names(parser, arguments)
    if arguments.serve is not None:
        overrides.append(f'--configs.server.bind={arguments.serve}')
    if importlib.util.find_spec('torch') is None:
        parser.error('this Python has no torch: `make setup`, then `. .venv/bin/activate`')
    try:
        check_exists(arguments.configs or ())
    except ConfigError as error:
        parser.error(str(error))
    return arguments, overrides


def evaluated(text: str) -> str:
    """The value of --evaluate. Raises ArgumentTypeError for one that there is not."""
    count = text.removeprefix(AVERAGE)
    is_average = text != count and count.isascii() and count.isdigit() and int(count) > 1
    if text in ('best', EPOCHS) or is_average:
        return text
    raise argparse.ArgumentTypeError(
        f'{text!r}: it is best, epochs, or average:N with the number of epochs, at least 2'
    )


def check_names(parser: Parser, arguments: argparse.Namespace) -> None:
    """End the process for a --name or --suffix that cannot be that of a folder."""
    try:
        check_part('--suffix', arguments.suffix, MAX_SUFFIX)
        if arguments.name is not None:
            check_part('--name', arguments.name, MAX_NAME)
    except ValueError as error:
        parser.error(str(error))
    if arguments.name is not None and arguments.suffix:
        parser.error('argument --suffix: --name is the whole name of the run folder; leave one out')
    if arguments.name in ('', '.', '..'):
        parser.error(f'argument --name: {arguments.name!r} is not the name of a folder')


class Once(logging.Filter):
    """Passes each message only the first time."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to print ``record``."""
        message = record.getMessage()
        new = message not in self._seen
        self._seen.add(message)
        return new


def quiet_others(rank: int) -> None:
    """Print each warning once, on rank 0 only: ranks have the same ones, or they are errors."""
    logging.basicConfig(format='%(message)s', level=logging.INFO if rank == 0 else logging.ERROR)
    logging.root.handlers[0].addFilter(Once())
    logging.root.handlers[0].addFilter(terminal.Erases())
    logging.captureWarnings(True)
