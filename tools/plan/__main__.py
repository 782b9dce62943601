"""Predict training steps on a network: `python -m tools.plan --help`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.rates import parse_rate
from tools.harness.cli import Parser, check_folder, exit_on_signals, positive, refuse
from utils.allocator import keep_freed_memory
from utils.cli import DECLARATIONS, Refused
from utils.config import ConfigError, load
from utils.config.loading import check_exists

PROGRAM = 'tools.plan'
OPTIONS = (
    '--bandwidths', '--calibration', '--check', '--configs', '--help', '--json', '--latency',
    '--png', '--sharing', '--timeline', '--workers',
)  # fmt: skip
EXAMPLES = """\
examples:
  whether compression pays for a stack, on three networks, with up to 1,024 workers:
    python -m tools.plan --configs configs/digits/cnn.py configs/dgc/wm5.py \\
        --bandwidths 10mbit 100mbit 1gbit --workers 4 16 64 1024 --png plan.png
  with an overridden setting, a latency of 80 ms, and the calibration of this host in a file:
    python -m tools.plan --configs configs/cifar/resnet20.py --configs.train.batch_size 64 \\
        --latency 80 --calibration host.json
  which layers to merge into buckets with four workers, as a figure:
    python -m tools.plan --configs configs/cifar/vgg16.py configs/dgc/wm5.py --workers 4 \\
        --bandwidths 1gbit --timeline timeline.png
  the errors of predictions, compared with measurements on four nodes that share two cores:
    python -m bench.cluster --model vgg16 --nodes 4 --rates 100mbit 1gbit --json table.json
    python -m tools.plan --check table.json --sharing 2

Printed are ms per step and, in brackets, the scaling efficiency: the time of one worker alone as a
fraction of them. Processor times are measured on this host's CPU, so run it on a host like those
that will train. docs/planner.md lists what the model leaves out. Exit status: 2 for invalid input.
"""


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse and check the command line; return it with the overrides of settings in it."""
    parser = Parser(
        PROGRAM,
        'Predict the time of a training step and the winner among dense training, your stack, and '
        'your stack with other exchanges, from one measured step.',
        EXAMPLES,
    )
    add = parser.add_argument
    add('--configs', nargs='+', action='extend', metavar='FILE', help='the stack, as for train.py')
    add('--configs.NAME', metavar='VALUE', help='override one setting, as for train.py')
    add('--workers', nargs='+', type=positive, metavar='N', help='their numbers (4 16 64 1024)')
    add('--bandwidths', nargs='+', metavar='RATE', help='of the links (10mbit 100mbit 1gbit)')
    add('--latency', type=float, default=0.05, metavar='MS', help='of the links, one way (0.05)')
    add('--sharing', type=float, default=1.0, metavar='S', help='workers that share a core (1)')
    add('--pipeline', action='store_true',
        help='predict workers that compress a bucket while the one before it is sent')  # fmt: skip
    add('--calibration', type=Path, metavar='FILE',
        help='calibration of this host; measured and written if it is missing')  # fmt: skip
    add('--png', type=Path, metavar='FILE', help='draw the predictions as a PNG')
    add('--timeline', nargs='?', const='', metavar='FILE',
        help='show when buckets are compressed and sent (per tensor, whole model and merged) at '
        'the first bandwidth with the fewest workers; with FILE, also draw a PNG')  # fmt: skip
    add('--json', type=Path, metavar='FILE', help='write the predictions to this file')
    add('--check', type=Path, metavar='TABLE', help='compare with this table of bench.cluster')
    arguments, overrides = parser.parse_known_args(argv)
    try:
        check(arguments, overrides)
        check_exists(arguments.configs or ())
    except (ValueError, ConfigError) as error:
        parser.error(str(error))
    return arguments, overrides


def check(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Fill in the defaults of a plan. Raises ValueError for invalid arguments."""
    if not arguments.configs:
        if arguments.check is None:
            raise ValueError('nothing to plan: give a stack (--configs FILE ...), or --check TABLE')
        options = ('workers', 'bandwidths', 'png', 'timeline')
        given = [f'--{name}' for name in options if vars(arguments)[name] is not None]
        for word in (*given, *(word for word in overrides if word.startswith('-'))):
            raise ValueError(f'{word} has no effect without a stack: add --configs FILE ...')
    arguments.workers = sorted({*(arguments.workers or (4, 16, 64, 1024))})
    arguments.bandwidths = [*dict.fromkeys(arguments.bandwidths or ('10mbit', '100mbit', '1gbit'))]
    for bandwidth in arguments.bandwidths:
        parse_rate(bandwidth)
    if arguments.workers[0] < 2:
        raise ValueError('--workers: a single worker exchanges no gradients: give 2 or more')
    if not 0 <= arguments.latency < float('inf'):
        raise ValueError(f'--latency is in ms, from 0 on, got {arguments.latency}')
    if not 1 <= arguments.sharing < float('inf'):
        raise ValueError(
            f'--sharing is the number of workers that share a core, from 1 on, got '
            f'{arguments.sharing}'
        )
    for name in ('calibration', 'png', 'timeline', 'json'):
        file = vars(arguments)[name]
        check_folder(f'--{name}', Path(file) if file else None)
    if (arguments.png or arguments.timeline) and importlib.util.find_spec('matplotlib') is None:
        option = '--png' if arguments.png else '--timeline FILE'
        raise ValueError(f'{option} needs matplotlib: pip install -r requirements.txt')


def main(argv: Sequence[str]) -> int:
    """Carry out the command; return the exit code."""
    arguments, overrides = parse(argv)
    exit_on_signals()
    keep_freed_memory()  # as train.py does
    try:
        stack = arguments.configs
        configs = load(stack, overrides, OPTIONS, DECLARATIONS) if stack else None
        if configs is not None:
            configs.check()

        from tools.plan.run import run  # torch takes seconds to import

        run(arguments, configs)
    except (ConfigError, Refused) as error:
        return refuse(PROGRAM, ' '.join(str(error).split()))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
