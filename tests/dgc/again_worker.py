"""One process of test_engines_thread: engines made one after another, each closed before the next.

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


if __name__ == '__main__':
    for _ in range(TIMES):
        ranks = engines.run(gathered, 'torch')
        assert ranks == [*range(len(ranks))], ranks
        assert not carriers(), carriers()
    sys.stdout.write(f'all {TIMES}\n')  # in one piece, which print does not write
