"""One process of test_engines_torch: engines made one after another, each closed before the next.

LAUNCHER python again_worker.py
"""

from __future__ import annotations

import sys

import torch

from dgc import engines
from dgc.engines import Engine

TIMES = 6


def gathered(engine: Engine) -> list[int]:
    """What an engine's workers say of themselves."""
    return engine.all_gather(torch.tensor([engine.rank])).flatten().tolist()


if __name__ == '__main__':
    for _ in range(TIMES):
        ranks = engines.run(gathered, 'torch')
        assert ranks == [*range(len(ranks))], ranks
    sys.stdout.write(f'all {TIMES}\n')  # in one piece, which print does not write
