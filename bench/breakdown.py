"""What a step costs beside forward and backward pass: bytes moved and processor time by stage.

One process plays all ranks: every rank's message is its own. Gradients are random, and there is no
forward or backward pass. Bytes are those of the tensors that each operation reads and writes, by
its schema; an operation on some positions counts these alone. Processor time is this thread's.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dgc
from dgc.engines.base import Engine
from tools.harness.workloads import SGD_SETTINGS, WORKLOADS, make_model
from utils.allocator import keep_freed_memory

STAGES = {
    'finiteness': ('dgc.finite',),
    'threshold from a sample': ('dgc.sample', 'aten.topk', 'aten.arange'),
    'momentum, velocity, search': ('dgc.accumulate', 'dgc.collect'),
    'messages': (
        'dgc.linear_encode', 'dgc.linear_decode', 'dgc.qsgd_encode', 'dgc.elias_fano_encode',
        'dgc.elias_fano_decode', 'dgc.is_even', 'dgc.even_encode', 'dgc.even_decode',
        'dgc.in_order', 'aten.cat', 'aten.stack', 'aten.equal',
    ),
    'memory of what was sent': ('aten.index_fill_', 'aten.index_add_'),
    'mean to .grad': ('dgc.spread',),
    'optimizer': ('dgc.apply', 'dgc.step', 'aten.add', 'aten.mul_', 'aten.add_'),
}  # fmt: skip
OTHER, PYTHON = 'other operations', 'Python and rest'
ORDER = (*STAGES, OTHER, PYTHON)
BY_OPERATION = {name: stage for stage, names in STAGES.items() for name in names}
# They touch the positions that they are given, and not all of the tensor.
SPARSE = ('aten.index_fill_', 'aten.index_add_', 'aten.index', 'aten.index_put_', 'dgc.sample')


class Echo(Engine):
    """An engine of ``size`` ranks whose messages are all this rank's."""

    name = 'echo'
    has_thread = False

    def __init__(self, size: int) -> None:
        super().__init__(rank=0, size=size, local_rank=0, local_size=size)

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def _all_gather(self, tensor: Tensor) -> Tensor:
        return torch.stack([tensor] * self.size)

    def _send_recv(
        self, tensor: Tensor, destination: int | None, source: int | None
    ) -> Tensor | None:
        return None if source is None else tensor.clone()

    def _broadcast(self, tensor: Tensor, root: int) -> Tensor:
        return tensor

    def _barrier(self) -> None:
        pass


class Ledger(TorchDispatchMode):
    """Adds up bytes and processor time of all operations inside it, by stage."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: dict[str, float] = defaultdict(float)
        self.seconds: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call an operation, and note what it cost."""
        kwargs = kwargs or {}
        start = time.thread_time()
        result = function(*args, **kwargs)
        seconds = time.thread_time() - start
        name = f'{function.namespace}.{function._schema.name.split("::")[1]}'
        stage = BY_OPERATION.get(name, OTHER)
        nbytes = moved(function, name, args, kwargs, result)
        if nbytes:  # else a view, which is less than this bookkeeping: the rest of the total
            self.nbytes[stage] += nbytes
            self.seconds[stage] += seconds
        return result


def moved(function: Any, name: str, args: Any, kwargs: Any, result: Any) -> float:
    """Return the bytes that an operation reads and writes: none for a view."""
    schema = function._schema
    writes = any(
        each.alias_info is not None and each.alias_info.is_write for each in schema.arguments
    )
    is_view = not writes and any(each.alias_info is not None for each in schema.returns)
    if is_view or name == 'dgc.holders':  # which counts references
        return 0
    if name in SPARSE:
        smaller = [*tensors((args[1:], kwargs)), *tensors(result if not writes else ())]
        return sum(8 for each in smaller[:1] for _ in range(each.numel()))
    # A mean is written without being read; so is a memory that is not updated in place.
    reads_once = name == 'dgc.spread' or (name == 'dgc.accumulate' and bool(tensors(args[-2])))
    total = 0
    for argument, value in zip(schema.arguments, args, strict=False):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        size = sum(each.nbytes for each in tensors(value))
        total += size * (2 if is_written and not reads_once else 1)
    total += sum(each.nbytes for value in kwargs.values() for each in tensors(value))
    if not writes:
        total += sum(each.nbytes for each in tensors(result))
    return total


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in nested lists and tuples."""
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def parameters_of(model: str) -> nn.Module:
    """Return the network of a workload."""
    return make_model(WORKLOADS[model])


def compute_alone(network: nn.Module) -> Optimizer:
    """Return the optimizer of the row ``compute``."""
    return torch.optim.SGD(network.parameters(), **SGD_SETTINGS)


def compressed(network: nn.Module, workers: int, **settings: Any) -> Optimizer:
    """Return the optimizer of the row ``dgc``, or with other settings of its composition."""
    inner = dgc.DGCSGD(network.parameters(), **SGD_SETTINGS)
    return dgc.DistributedOptimizer(
        inner,
        network.named_parameters(),
        dgc.deep_gradient_compression(0.001, **settings),
        Echo(workers),
    )


class Steps:
    """Steps of one optimizer, on random gradients that are made anew each time.

    Args:
        network: Whose parameters are stepped.
        optimizer: Plain, or wrapped.
    """

    def __init__(self, network: nn.Module, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.parameters = list(network.parameters())
        draw = torch.Generator().manual_seed(0)
        self._sources = [torch.randn(p.shape, generator=draw) for p in self.parameters]
        self.numel = sum(p.numel() for p in self.parameters)
        self.totals: list[float] = []

    def prepare(self) -> None:
        """Give every parameter a gradient of its own storage."""
        for parameter, source in zip(self.parameters, self._sources, strict=True):
            parameter.grad = source.clone()

    def total(self) -> None:
        """Take a step and note its processor seconds, of all threads."""
        self.optimizer.zero_grad()
        self.prepare()
        start = time.process_time()
        self.optimizer.step()
        self.totals.append(time.process_time() - start)

    def ledger(self) -> Ledger:
        """Take a step, and return what its operations cost."""
        self.optimizer.zero_grad()
        self.prepare()
        with Ledger() as ledger:
            self.optimizer.step()
        return ledger


def measure(model: str, workers: int, rounds: int, **settings: Any) -> list[dict[str, Any]]:
    """Measure both optimizers in turn.

    Args:
        model: Of WORKLOADS.
        workers: The number of ranks that are played.
        rounds: Steps of each, with and without a ledger.
        settings: Of the composition.

    Returns:
        One dictionary an optimizer: its name, total ms (median, least, most), and by stage the
        bytes per element and the median ms.
    """
    keep_freed_memory()  # as in training: page faults are no part of a step
    rows: list[tuple[str, Callable[[nn.Module], Optimizer]]] = [
        ('compute alone', compute_alone),
        ('dgc', lambda network: compressed(network, workers, **settings)),
    ]
    networks = [parameters_of(model) for _ in rows]
    made = [Steps(n, make(n)) for n, (_, make) in zip(networks, rows, strict=True)]
    ledgers: list[list[Ledger]] = [[] for _ in rows]
    for steps in made:
        for _ in range(2):
            steps.total()
        steps.totals.clear()
    for _ in range(rounds):
        for steps, found in zip(made, ledgers, strict=True):
            steps.total()
            found.append(steps.ledger())
    return [
        figures(name, steps, found)
        for (name, _), steps, found in zip(rows, made, ledgers, strict=True)
    ]


def figures(name: str, steps: Steps, ledgers: Sequence[Ledger]) -> dict[str, Any]:
    """Return a row: the totals of steps without a ledger, and the stages of those with one."""
    total = 1e3 * statistics.median(steps.totals)
    stages = {
        stage: {
            'bytes': statistics.median(each.nbytes[stage] for each in ledgers) / steps.numel,
            'ms': 1e3 * statistics.median(each.seconds[stage] for each in ledgers),
        }
        for stage in (*STAGES, OTHER)
    }
    rest = total - sum(each['ms'] for each in stages.values())
    stages[PYTHON] = {'bytes': 0.0, 'ms': max(rest, 0.0)}
    return {
        'name': name,
        'elements': steps.numel,
        'ms': total,
        'ms_least': 1e3 * min(steps.totals),
        'ms_most': 1e3 * max(steps.totals),
        'stages': stages,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the stages of all optimizers side by side."""
    heads = [f'{each["name"]:>22}' for each in results]
    lines = [
        f'{"":28}' + ''.join(heads),
        f'{"stage":28}' + f'{"bytes/element":>14}{"ms":>8}' * len(results),
    ]
    for stage in ORDER:
        cells = [each['stages'][stage] for each in results]
        if any(cell['bytes'] >= 0.05 or cell['ms'] >= 0.005 for cell in cells):
            shown = ''.join(f'{cell["bytes"]:14.1f}{cell["ms"]:8.2f}' for cell in cells)
            lines.append(f'{stage:28}{shown}')
    sums = [
        (sum(cell['bytes'] for cell in each['stages'].values()), each['ms']) for each in results
    ]
    lines.append(f'{"step":28}' + ''.join(f'{size:14.1f}{ms:8.2f}' for size, ms in sums))
    spreads = [f'{each["ms_least"]:.2f} to {each["ms_most"]:.2f}' for each in results]
    lines.append(f'{"least to most":28}' + ''.join(f'{each:>22}' for each in spreads))
    return '\n'.join(lines)
