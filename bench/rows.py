"""The rows of the tables: ways to train a network on several workers, ours and others'.

A new composition is one line of COMPOSITIONS. torch, dgc and Horovod are imported where a row is
made, in a worker: the command that starts the workers needs none of them.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer

    from dgc import Composition, DistributedOptimizer, Engine
    from dgc.profile import Profile

LAUNCHERS = {'torch': 'torchrun', 'horovod': 'horovodrun'}  # engine → what starts its workers
COMPUTE, DENSE, COMPRESSED = 'compute', 'dense', 'compressed'
SETTINGS: dict[str, Any] = {'lr': 0.01, 'momentum': 0.9, 'weight_decay': 1e-4}
RATIO = 0.001


class Trained(NamedTuple):
    """A network with what trains it.

    network: to be called; optimizer: its ``zero_grad()`` and ``step()`` are part of a step.
    ours: the optimizer whose ``reducer.progress`` counts phases and bytes; None for others' rows.
    """

    network: nn.Module
    optimizer: Optimizer
    ours: DistributedOptimizer | None = None


Measure = Callable[[], 'Profile'] | None  # of a step of the network, for those that plan by it
Make = Callable[['nn.Module', 'Engine', Measure], Trained]


class Row(NamedTuple):
    """A way to train.

    base: its name without the engine, in which the same row under another engine is alike.
    engine: 'torch' or 'horovod': whose processes it runs in.
    kind: 'compute' without the others, 'dense' where every element is sent, or 'compressed'.
    make: from a network of its own, the engine of the process, and what times the network.
    alone: in processes of its own, since it may take them down.
    warmup: steps before any that counts.
    late: made on the links that it will be measured on, since it plans by them.
    """

    base: str
    engine: str
    kind: str
    make: Make
    alone: bool = False
    warmup: int = 2
    late: bool = False

    @property
    def name(self) -> str:
        """The base, and the engine where others have the same."""
        return self.base if self.base in ONE_ENGINE else f'{self.base} ({self.engine})'


def sgd(model: nn.Module) -> Optimizer:
    """Momentum SGD of torch's own."""
    import torch

    return torch.optim.SGD(model.parameters(), **SETTINGS)


def compute(model: nn.Module, _: Engine, __: Measure) -> Trained:
    """Forward, backward and optimizer, without the others."""
    return Trained(model, sgd(model))


def distributed(model: nn.Module, bucket_mib: float | None = None) -> DistributedDataParallel:
    """Without what DDP does beyond the exchange of gradients: they are views of its buckets, and
    BatchNorm's buffers are not broadcast. ``bucket_mib`` MiB a bucket, None for DDP's default."""
    from torch.nn.parallel import DistributedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter('ignore', FutureWarning)  # torch 2.14 is to rename broadcast_buffers
        return DistributedDataParallel(
            model,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=bucket_mib,
        )


def ddp(model: nn.Module, _: Engine, __: Measure) -> Trained:
    """DistributedDataParallel in float32."""
    return Trained(distributed(model), sgd(model))


def ddp_fp16(model: nn.Module, _: Engine, __: Measure) -> Trained:
    """DistributedDataParallel that sends float16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    network = distributed(model)
    network.register_comm_hook(None, fp16_compress_hook)
    return Trained(network, sgd(model))


def powersgd(model: nn.Module, _: Engine, __: Measure) -> Trained:
    """DistributedDataParallel with PyTorch's PowerSGD, rank 4; its first two steps are dense.

    All gradients are one bucket: for each, a thread of gloo's waits for what another one of its two
    has to carry, so that more buckets stand still.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    network = distributed(model, bucket_mib=2**20)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    network.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return Trained(network, sgd(model))


def horovod(fp16: bool) -> Make:
    """Horovod's own optimizer, in float32 or float16."""

    def make(model: nn.Module, _: Engine, __: Measure) -> Trained:
        import horovod.torch as hvd

        # Horovod remembers a tensor by its name, so the two types must not share one.
        named = [(f'fp16 {fp16} {name}', p) for name, p in model.named_parameters()]
        compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none
        return Trained(model, hvd.DistributedOptimizer(sgd(model), named, compression))

    return make


def composition(choose: Callable[[Any], Composition]) -> Make:
    """One of ours, on the engine of the process. The memory holds the momentum if it can."""

    def make(model: nn.Module, engine: Engine, profile: Measure) -> Trained:
        import dgc

        chosen = choose(dgc)
        optimizer = sgd(model)
        if chosen.memory.holds_momentum:
            optimizer = dgc.DGCSGD(model.parameters(), **SETTINGS)
        named = model.named_parameters()
        ours = dgc.DistributedOptimizer(optimizer, named, chosen, engine, profile=profile)
        return Trained(model, ours, ours)

    return make


def packed(dgc: Any, ratio: float = RATIO, **parts: Any) -> Composition:
    """Deep Gradient Compression in the fewest bytes, with other parts in place of its own."""
    return dgc.deep_gradient_compression(ratio, values='int8', indices='packed', **parts)


# From the package dgc, so that a row may use what another version of it lacks.
COMPOSITIONS: dict[str, Callable[[Any], Composition]] = {
    'dense': lambda dgc: dgc.dense(),
    'dgc': lambda dgc: dgc.deep_gradient_compression(RATIO),
    'dgc fp16 int32': lambda dgc: dgc.deep_gradient_compression(
        RATIO, fp16_values=True, int32_indices=True
    ),
    'dgc packed': lambda dgc: dgc.deep_gradient_compression(RATIO, indices='packed'),
    'dgc packed int8': lambda dgc: packed(dgc),
    'dgc per tensor': lambda dgc: packed(dgc, planner=dgc.planner.PerTensor()),
    'dgc whole': lambda dgc: packed(dgc, planner=dgc.planner.Whole()),
    'dgc merged': lambda dgc: packed(dgc, planner=dgc.planner.Merged()),
    'dgc adaptive': lambda dgc: packed(dgc, planner=dgc.planner.Adaptive()),
    'mgwfbp': lambda dgc: dgc.dense(planner=dgc.planner.Merged()),
    'gtopk': lambda dgc: packed(dgc, exchange=dgc.exchanges.GTopK()),
    'gtopk doubling': lambda dgc: packed(dgc, exchange=dgc.exchanges.GTopKDoubling()),
    'spardl': lambda dgc: packed(
        dgc, exchange=dgc.exchanges.SparDL(compressor=dgc.compressors.SampledTopK())
    ),
    'oktopk': lambda dgc: packed(dgc, exchange=dgc.exchanges.OkTopK()),
    'chunk': lambda dgc: packed(dgc, exchange=dgc.exchanges.ChunkAllReduce(1024)),
}

DENSE_ONES = {'dense', 'mgwfbp'}
LATE = {'dgc merged', 'dgc adaptive', 'mgwfbp'}

OTHERS = [
    Row('ddp', 'torch', DENSE, ddp),
    Row('ddp fp16', 'torch', DENSE, ddp_fp16),
    Row('powersgd', 'torch', COMPRESSED, powersgd, alone=True, warmup=4),
    Row('horovod', 'horovod', DENSE, horovod(fp16=False)),
    Row('horovod fp16', 'horovod', DENSE, horovod(fp16=True)),
]
ONE_ENGINE = {row.base for row in OTHERS}

ROWS: list[Row] = [
    row
    for engine in LAUNCHERS
    for row in [
        Row('compute', engine, COMPUTE, compute),
        *(row for row in OTHERS if row.engine == engine),
        *(
            Row(
                base,
                engine,
                DENSE if base in DENSE_ONES else COMPRESSED,
                composition(choose),
                late=base in LATE,
            )
            for base, choose in COMPOSITIONS.items()
        ),
    ]
]


def select(only: Sequence[str] = (), engines: Sequence[str] = tuple(LAUNCHERS)) -> list[Row]:
    """The rows of these engines, in the table's order: all, or those that ``only`` names.

    A name without an engine stands for the row under each. Raises ValueError for one that there
    is not, or not under these engines.
    """
    possible = [row for row in ROWS if row.engine in engines]
    names = {name for row in possible for name in (row.base, row.name)}
    for name in only:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f'did you mean {near[0]!r}?' if near else f'there are {", ".join(sorted(names))}'
            raise ValueError(f'there is no row {name!r} under {" or ".join(engines)}: {hint}')
    return [row for row in possible if not only or {row.base, row.name} & {*only}]


def by_name(names: Sequence[str]) -> list[Row]:
    """The rows of these full names."""
    rows = {row.name: row for row in ROWS}
    return [rows[name] for name in names]
