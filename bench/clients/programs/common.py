"""What a client gets from the benchmark, and gives back: its number of steps, and its losses."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

STEPS = int(os.environ.get('STEPS', '100'))
DENSITY = float(os.environ.get('DENSITY', '0.01'))
WARMUP = int(os.environ.get('WARMUP', '40'))  # steps in which the density falls to DENSITY

if 'FIRST_BUCKET' in os.environ:  # bytes: with other buckets DDP adds in another order
    dist._DEFAULT_FIRST_BUCKET_BYTES = int(os.environ['FIRST_BUCKET'])  # type: ignore[attr-defined]


def save(rank: int, losses: Sequence[float]) -> None:
    """Write the losses of this rank, one per step, into the folder of the results.

    Raises:
        ValueError: Where there are not as many as steps.
    """
    if len(losses) != STEPS:
        raise ValueError(f'{len(losses)} losses of {STEPS} steps')
    if folder := os.environ.get('LOSSES'):
        Path(folder, f'{rank}.json').write_text(json.dumps([float(loss) for loss in losses]))
    elif rank == 0:
        print(f'loss {losses[0]:.4f} at the first step, {losses[-1]:.4f} at the last')
