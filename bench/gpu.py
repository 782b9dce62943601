"""What compression adds to a training step on one GPU, without a network.

    python -m bench.gpu --models vgg16,resnet50,gpt --json gpu.json

One process plays one of several ranks, as ``bench.breakdown`` does: all messages are its own, so
they are made, decoded and added up, and nothing is sent. Rows are measured in turn. A step is
forward pass, backward pass and update; 'update' is the part after the backward pass, alone, on
gradients that are there. Synchronizations are calls in one update for which the host waits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from bench.breakdown import compressed
from dgc.memory import MomentumCorrection
from tools.harness.cli import Parser, check_folder, names, positive
from tools.harness.spec import write_json
from tools.harness.workloads import SGD_SETTINGS

PROGRAM = 'bench.gpu'
WARMUP = 3  # steps before the first that counts: kernels are compiled, memory is allocated
STEPS = 10  # that are timed together: the host may run ahead of the GPU, as in training


class Network(NamedTuple):
    """A network with one batch, both on the GPU."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor

    def loss(self) -> Tensor:
        """Compute the loss in bfloat16 autocast."""
        with torch.autocast(self.inputs.device.type, torch.bfloat16):
            logits = self.model(self.inputs)
        return cross_entropy(logits.float().flatten(0, -2), self.targets.flatten())


def images(model: nn.Module, batch: int, side: int, classes: int) -> Network:
    """Return a network of images with random images and labels."""
    return Network(
        model.cuda(),
        torch.randn(batch, 3, side, side, device='cuda'),
        torch.randint(classes, (batch,), device='cuda'),
    )


def vgg16() -> Network:
    """VGG-16 for CIFAR-10, batches of 128."""
    from models.cifar import vgg16

    return images(vgg16(10), 128, 32, 10)


def resnet50() -> Network:
    """ResNet-50 for ImageNet, batches of 64."""
    from torchvision.models import resnet50

    return images(resnet50(), 64, 224, 1000)


def gpt() -> Network:
    """GPT-2 small: 124 million parameters, 8 texts of 1,024 tokens."""
    from models.transformer import GPT

    text = torch.randint(50_257, (8, 1025), device='cuda')
    return Network(GPT(50_257, layers=12, context=1024).cuda(), text[:, :-1], text[:, 1:])


NETWORKS: dict[str, Callable[[], Network]] = {'vgg16': vgg16, 'resnet50': resnet50, 'gpt': gpt}
ROWS: dict[str, Callable[[nn.Module, int], Optimizer]] = {
    'compute alone': lambda model, _: torch.optim.SGD(model.parameters(), **SGD_SETTINGS),
    'compute alone, fused': lambda model, _: torch.optim.SGD(
        model.parameters(), fused=True, **SGD_SETTINGS
    ),
    'dgc': compressed,
    'dgc, bfloat16 memory': partial(compressed, memory=MomentumCorrection(dtype='bfloat16')),
}


class Measured:
    """One row: its network, its optimizer, and what was measured.

    Args:
        name: Of the row.
        make: Makes the network.
        workers: Number of ranks that are played.
    """

    def __init__(self, name: str, make: Callable[[], Network], workers: int) -> None:
        self.name = name
        self.network = make()
        self.model = self.network.model
        self.numel = sum(parameter.numel() for parameter in self.model.parameters())
        before = torch.cuda.memory_allocated()
        self.optimizer = ROWS[name](self.model, workers)
        self.steps: list[float] = []
        self.updates: list[float] = []
        for _ in range(WARMUP):
            self.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.kept = torch.cuda.memory_allocated() - before

    def step(self) -> None:
        """Take a training step."""
        self.backward()
        self.optimizer.step()

    def measure(self) -> None:
        """Time some steps, and some updates."""
        self.steps.append(timed(self.step))
        self.updates.append(timed(self.optimizer.step, self.backward))

    def backward(self) -> None:
        """Compute gradients."""
        self.optimizer.zero_grad()
        self.network.loss().backward()

    def figures(self) -> dict[str, Any]:
        """Return the row."""
        self.backward()
        with counted() as waits:
            self.optimizer.step()
        return {
            'row': self.name,
            'parameters': self.numel,
            'step_ms': statistics.median(self.steps),
            'step_ms_all': self.steps,
            'update_ms': statistics.median(self.updates),
            'update_ms_all': self.updates,
            'synchronizations': len(waits),
            'kept_bytes_per_parameter': self.kept / self.numel,
        }


def timed(job: Callable[[], Any], prepare: Callable[[], None] | None = None) -> float:
    """Return the milliseconds of one of STEPS calls; with ``prepare``, called before each one,
    they are timed one by one."""
    torch.cuda.synchronize()
    if prepare is None:
        start = time.perf_counter()
        for _ in range(STEPS):
            job()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3 / STEPS
    seconds = []
    for _ in range(STEPS):
        prepare()
        torch.cuda.synchronize()
        start = time.perf_counter()
        job()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3


@contextmanager
def counted() -> Iterator[list[warnings.WarningMessage]]:
    """Note each call inside the context for which the host waits for the GPU."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter('always')
        torch.cuda.set_sync_debug_mode('warn')
        try:
            yield noted
        finally:
            torch.cuda.set_sync_debug_mode('default')
            noted[:] = [each for each in noted if 'synchroniz' in str(each.message)]


def table(model: str, results: Sequence[dict[str, Any]]) -> str:
    """Return a network's rows as text."""
    base = results[0]['step_ms']
    lines = [
        f'{model}, {results[0]["parameters"]:,} parameters',
        f'{"":24}{"ms per step":>12}{"ratio":>7}{"update ms":>11}{"waits":>7}{"bytes/par.":>12}',
    ]
    lines += [
        f'{r["row"]:24}{r["step_ms"]:12.2f}{r["step_ms"] / base:7.2f}{r["update_ms"]:11.2f}'
        f'{r["synchronizations"]:7}{r["kept_bytes_per_parameter"]:12.1f}'
        for r in results
    ]
    return '\n'.join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = Parser(PROGRAM, __doc__ or '')
    add = parser.add_argument
    add('--models', default=','.join(NETWORKS), metavar='NAME,...', help='(all)')
    add('--workers', type=positive, default=4, metavar='N', help='ranks that are played (4)')
    add('--rounds', type=positive, default=5, metavar='N', help='measurements of each row (5)')
    add('--json', type=Path, metavar='FILE', help='write the rows to this file')
    arguments = parser.parse_args(argv)
    arguments.models = names(arguments.models)
    if unknown := set(arguments.models) - set(NETWORKS):
        parser.error(f'--models {",".join(sorted(unknown))}: there are {", ".join(NETWORKS)}')
    try:
        check_folder('--json', arguments.json)
    except ValueError as error:
        parser.error(str(error))
    if not torch.cuda.is_available():
        parser.error('torch sees no GPU here; bench.step --breakdown measures the CPU')
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print tables and write the rows; return the exit code."""
    arguments = parse(argv)
    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}')
    found = []
    for model in arguments.models:
        rows = [Measured(name, NETWORKS[model], arguments.workers) for name in ROWS]
        for _ in range(arguments.rounds):
            for row in rows:
                row.measure()
        results = [row.figures() for row in rows]
        found += [{'model': model, **each} for each in results]
        print(table(model, results), flush=True)
    if arguments.json is not None:
        write_json(arguments.json, found)
    return 0


if __name__ == '__main__':
    sys.exit(main())
