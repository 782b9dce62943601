"""The most memory that steps take beside the weights, in bytes per parameter.

A process for each row plays one of several ranks, as ``bench.breakdown`` does: random gradients,
and no forward or backward pass, so no activations. Its resident memory is read when the network is
there, and the highest after that counts: gradients, memory of compression, optimizer, messages.
Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from bench.breakdown import compressed, compute_alone, parameters_of
from dgc.memory import MomentumCorrection

STEPS = 4
STATUS, CLEAR = Path('/proc/self/status'), Path('/proc/self/clear_refs')
RESET_PEAK = '5'  # in clear_refs: the peak becomes what is resident now


def corrected(dtype: str, nonfinite: str = 'stop') -> Callable[[nn.Module, int], Optimizer]:
    """Return what makes the optimizer of Deep Gradient Compression with such a memory."""
    return lambda network, workers: compressed(
        network, workers, memory=MomentumCorrection(dtype=dtype), nonfinite=nonfinite
    )


ROWS: dict[str, Callable[[nn.Module, int], Optimizer]] = {
    'compute alone': lambda network, _: compute_alone(network),
    'dgc': corrected('float32'),
    'dgc, bfloat16': corrected('bfloat16'),
    'dgc, skip': corrected('float32', 'skip'),
    'dgc, skip, bfloat16': corrected('bfloat16', 'skip'),
}


def resident(field: str) -> int:
    """Return a field of this process's status in bytes: 'VmRSS', or 'VmHWM' for the peak."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f'{field}:'):
            return 1024 * int(line.split()[1])
    raise OSError(f'{STATUS} has no {field}')


def train(network: nn.Module, row: str, workers: int, steps: int) -> Optimizer:
    """Take steps on random gradients with a new optimizer of a row; return it."""
    optimizer = ROWS[row](network, workers)
    for _ in range(steps):
        for parameter in network.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def figures(network: nn.Module, row: str, workers: int, steps: int = STEPS) -> dict[str, Any]:
    """Measure a row in this process, on a network whose weights are in memory.

    Returns:
        The row's name, the number of parameters, and per parameter the bytes of the state that is
        kept between steps, and of the peak.
    """
    numel = sum(parameter.numel() for parameter in network.parameters())
    train(nn.Linear(64, 64), row, workers, 1)  # loads code that the first step needs
    before = resident('VmRSS')
    CLEAR.write_text(RESET_PEAK)
    optimizer = train(network, row, workers, steps)
    peak = resident('VmHWM') - before
    return {
        'name': row,
        'elements': numel,
        'kept': kept(optimizer) / numel,
        'peak': peak / numel,
    }


def kept(optimizer: Optimizer) -> int:
    """Return the bytes of all tensors that an optimizer keeps: its own, and those of a memory."""
    held = [each for entries in optimizer.state.values() for each in entries.values()]
    for bucket in getattr(optimizer, 'buckets', ()):
        held += bucket.buffers.values()
    return sum(each.nbytes for each in held if isinstance(each, torch.Tensor))


def measure(model: str, workers: int, rounds: int) -> list[dict[str, Any]]:
    """Measure each row ``rounds`` times, in turn, in processes of their own.

    Returns:
        One dictionary a row, of its median peak: see ``figures``.

    Raises:
        OSError: Where the system has no /proc/self/clear_refs.
    """
    if not CLEAR.exists():
        raise OSError(f'--memory reads {CLEAR}, which Linux alone has')
    found: dict[str, list[dict[str, Any]]] = {row: [] for row in ROWS}
    for _ in range(rounds):
        for row, results in found.items():
            command = [sys.executable, '-m', 'bench.memory', model, str(workers), row]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    return [sorted(each, key=lambda one: one['peak'])[len(each) // 2] for each in found.values()]


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the rows as text."""
    lines = [f'{"bytes per parameter":24}{"kept":>8}{"peak":>8}']
    lines += [f'{each["name"]:24}{each["kept"]:8.1f}{each["peak"]:8.1f}' for each in results]
    return '\n'.join(lines)


def main(argv: Sequence[str]) -> int:
    """Measure one row in this process, and print it as JSON."""
    model, workers, row = argv
    torch.set_num_threads(1)
    print(json.dumps(figures(parameters_of(model), row, int(workers))))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
