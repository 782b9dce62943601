"""One process of test_engines_thread: engines made one after another, and two at a time.

LAUNCHER python again_worker.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from dgc import engines
from dgc.engines import Engine

TIMES = 6
THREADS = Path('/proc/self/task')  # of Linux


def gathered(engine: Engine) -> list[int]:
    """What an engine's workers say of themselves."""
    return engine.all_gather(torch.tensor([engine.rank])).flatten().tolist()


def carriers() -> list[str]:
    """Threads of this process that carry bytes, or ask for it."""
    names = [(thread / 'comm').read_text().strip() for thread in THREADS.glob('*')]
    return [name for name in names if 'gloo' in name or 'dgc' in name]


def two_at_a_time(first: int) -> None:
    """Make two engines, of which the first one makes the default group; close ``first`` first."""
    pair = [engines.create('torch'), engines.create('torch')]
    pair.pop(first).close()
    ranks = gathered(pair[0])
    assert ranks == [*range(len(ranks))], ranks
    pair.pop().close()
    assert not carriers(), carriers()


if __name__ == '__main__':
    two_at_a_time(0)
    two_at_a_time(1)
    for _ in range(TIMES):
        ranks = engines.run(gathered, 'torch')
        assert ranks == [*range(len(ranks))], ranks
        assert not carriers(), carriers()
    sys.stdout.write(f'all {TIMES}\n')  # in one piece, which print does not write
