"""Predict steps on a network before it is there: `python -m tools.plan --help`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.options import Parser, complain, end_tidily, positive
from tools.cluster.rates import parse_rate
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
  with a setting of its own, over the ocean, and what this host was measured to do kept for later:
    python -m tools.plan --configs configs/cifar/resnet20.py --configs.train.batch_size 64 \\
        --latency 80 --calibration host.json
  which layers should travel together among four workers, as a picture:
    python -m tools.plan --configs configs/cifar/vgg16.py configs/dgc/wm5.py --workers 4 \\
        --bandwidths 1gbit --timeline timeline.png
  how far predictions are off what was measured on four nodes that share two cores:
    python -m bench.cluster --model vgg16 --nodes 4 --rates 100mbit 1gbit --json table.json
    python -m tools.plan --check table.json --sharing 2

ms: of a step, then in brackets the scaling efficiency: the share of it that one worker alone would
take. Processors are measured here, on CPUs, so plan on a host like those that will train.
docs/planner.md says what is left out. Exit status: 2 for what cannot be planned.
"""


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command line, and the overrides of settings in it."""
    parser = Parser(
        prog=f'python -m {PROGRAM}',
        description='Predict the time of a training step, and who wins: dense training, your '
        'stack, or your stack with another exchange; from one measured step.',
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add('--configs', nargs='+', action='extend', metavar='FILE', help='the stack, as of train.py')
    add('--configs.NAME', metavar='VALUE', help='override one setting, as of train.py')
    add('--workers', nargs='+', type=positive, metavar='N', help='how many (4 16 64 1024)')
    add('--bandwidths', nargs='+', metavar='RATE', help='of links (10mbit 100mbit 1gbit)')
    add('--latency', type=float, default=0.05, metavar='MS', help='of links, ms one way (0.05)')
    add('--sharing', type=float, default=1.0, metavar='S', help='workers that share a core (1)')
    add('--calibration', type=Path, metavar='FILE', help='read what this host does, or write it')
    add('--png', type=Path, metavar='FILE', help='draw the steps there')
    add('--timeline', nargs='?', const='', metavar='FILE',
        help='show when buckets are compressed and sent, per tensor, whole and merged, at the '
        'first bandwidth among the fewest workers; and draw it there, a PNG')  # fmt: skip
    add('--json', type=Path, metavar='FILE', help='write the predictions there')
    add('--check', type=Path, metavar='TABLE', help='compare with this table of bench.cluster')
    arguments, overrides = parser.parse_known_args(argv)
    try:
        check(arguments, overrides)
        check_exists(arguments.configs or ())
    except (ValueError, ConfigError) as error:
        parser.error(str(error))
    return arguments, overrides


def check(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Raise ValueError for what makes no sense; fill in what a plan has by default."""
    if not arguments.configs:
        if arguments.check is None:
            raise ValueError('nothing to plan: give a stack (--configs FILE ...), or --check TABLE')
        options = ('workers', 'bandwidths', 'png', 'timeline')
        given = [f'--{name}' for name in options if vars(arguments)[name] is not None]
        for word in (*given, *(word for word in overrides if word.startswith('-'))):
            raise ValueError(f'{word} is of no use without a stack: add --configs FILE ...')
    arguments.workers = sorted({*(arguments.workers or (4, 16, 64, 1024))})
    arguments.bandwidths = [*dict.fromkeys(arguments.bandwidths or ('10mbit', '100mbit', '1gbit'))]
    for bandwidth in arguments.bandwidths:
        parse_rate(bandwidth)
    if arguments.workers[0] < 2:
        raise ValueError('--workers: one worker has nobody to exchange gradients with: 2 or more')
    if not 0 <= arguments.latency < float('inf'):
        raise ValueError(f'--latency is in ms, from 0 on, got {arguments.latency}')
    if not 1 <= arguments.sharing < float('inf'):
        raise ValueError(f'--sharing is how many workers share a core, got {arguments.sharing}')
    for name in ('calibration', 'png', 'timeline', 'json'):
        file = vars(arguments)[name] and Path(vars(arguments)[name])
        if file and not file.absolute().parent.is_dir():
            raise ValueError(f'--{name}: there is no folder {file.absolute().parent}')
    if (arguments.png or arguments.timeline) and importlib.util.find_spec('matplotlib') is None:
        raise ValueError('--png needs matplotlib: pip install -r requirements.txt')


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments, overrides = parse(argv)
    end_tidily()
    keep_freed_memory()  # as train.py does
    try:
        stack = arguments.configs
        configs = load(stack, overrides, OPTIONS, DECLARATIONS) if stack else None
        if configs is not None:
            configs.check()

        from tools.plan.run import run  # torch takes seconds to import

        run(arguments, configs)
    except (ConfigError, Refused) as error:
        return complain(PROGRAM, ' '.join(str(error).split()))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
