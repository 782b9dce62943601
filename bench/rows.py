"""The rows of the tables: ways to train a network on several workers, ours and others'.

torch and Horovod are imported where a row is made, in a worker. Our own rows are those of
``dgc.algorithms.ALGORITHMS``, which is read when rows are chosen.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tools.harness.algorithms import COMPUTE, DENSE, canonical, compositions
from tools.harness.launch import LAUNCHERS
from tools.harness.workloads import SGD_SETTINGS, sgd_for

if TYPE_CHECKING:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer

    from dgc import Composition, DistributedOptimizer, Engine
    from dgc.profile import Profile

COMPRESSED = 'compressed'
PIPELINED = ' pipelined'  # ends the name of a row whose engine is, also where no core is spare


class Trained(NamedTuple):
    """A network with its optimizer.

    network: to be called; optimizer: its ``zero_grad()`` and ``step()`` are part of a step.
    ours: the optimizer whose ``reducer.progress`` counts phases and bytes; None for others' rows.
    """

    network: nn.Module
    optimizer: Optimizer
    ours: DistributedOptimizer | None = None


Measure = Callable[[], 'Profile'] | None  # profiles a step of the network, for timed planners
Make = Callable[['nn.Module', 'Engine', Measure], Trained]


class Row(NamedTuple):
    """A way to train.

    base: its name without the engine.
    engine: 'torch' or 'horovod': the processes that it runs in.
    kind: 'compute' without exchange, 'dense' if every element is sent, or 'compressed'.
    make: from a new network, the engine of the process, and what profiles the network.
    alone: runs in processes of its own, since it may end them.
    warmup: steps before the first that counts.
    late: made on the links that it is measured on, since its planner measures them.
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
        """The base, with the engine in brackets if other engines have the same row."""
        return self.base if self.base in ONE_ENGINE else f'{self.base} ({self.engine})'


def sgd(model: nn.Module) -> Optimizer:
    """PyTorch's momentum SGD."""
    import torch

    return torch.optim.SGD(model.parameters(), **SGD_SETTINGS)


def compute(model: nn.Module, _: Engine, __: Measure) -> Trained:
    """Forward pass, backward pass and optimizer, without exchange."""
    return Trained(model, sgd(model))


def distributed(model: nn.Module, bucket_mib: float | None = None) -> DistributedDataParallel:
    """DDP without what it does beyond the exchange of gradients.

    Gradients are views of its buckets, and BatchNorm's buffers are not broadcast.

    Args:
        model: to wrap.
        bucket_mib: size of a bucket in MiB; None for DDP's default.
    """
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

    All gradients are one bucket. With more, each would block one of gloo's two threads until the
    other one has carried its messages, and all would stand still.
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

        # Horovod identifies a tensor by its name, so the two types must not share one.
        named = [(f'fp16 {fp16} {name}', p) for name, p in model.named_parameters()]
        compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none
        return Trained(model, hvd.DistributedOptimizer(sgd(model), named, compression))

    return make


def composition(make_composition: Callable[[], Composition], pipeline: bool | None = None) -> Make:
    """A composition on the engine of the process. The memory holds the momentum if it can.

    pipeline: see ``dgc.create``.
    """

    def make(model: nn.Module, engine: Engine, profile: Measure) -> Trained:
        import dgc

        made = make_composition()
        optimizer, named = sgd_for(made, model.parameters()), model.named_parameters()
        ours = dgc.DistributedOptimizer(optimizer, named, made, engine, profile=profile)
        ours.engine.pipeline = pipeline  # each row has an engine of its own
        return Trained(model, ours, ours)

    return make


OTHERS = [
    Row('ddp', 'torch', DENSE, ddp),
    Row('ddp fp16', 'torch', DENSE, ddp_fp16),
    Row('powersgd', 'torch', COMPRESSED, powersgd, alone=True, warmup=4),
    Row('horovod', 'horovod', DENSE, horovod(fp16=False)),
    Row('horovod fp16', 'horovod', DENSE, horovod(fp16=True)),
]
ONE_ENGINE = {row.base for row in OTHERS}


def row_of(base: str, engine: str) -> Row:
    """The row of one of our compositions. Raises KeyError if this dgc has no such row."""
    from dgc.exchanges import AllReduce

    make = compositions()[base.removesuffix(PIPELINED)]
    pipeline = True if base.endswith(PIPELINED) else None
    example = make()
    kind = DENSE if isinstance(example.exchange, AllReduce) else COMPRESSED
    made = composition(make, pipeline)
    return Row(base, engine, kind, made, late=example.planner.needs_timing)


def rows_of(engine: str) -> list[Row]:
    """All rows that run in the processes of an engine, in the order of the tables."""
    others = [row for row in OTHERS if row.engine == engine]
    ours = [row_of(name, engine) for base in compositions() for name in (base, base + PIPELINED)]
    return [Row(COMPUTE, engine, COMPUTE, compute), *others, *ours]


@cache
def all_rows() -> list[Row]:
    """The rows of all engines, in the order of the tables."""
    return [row for engine in LAUNCHERS for row in rows_of(engine)]


def select(only: Sequence[str] = (), engines: Sequence[str] = tuple(LAUNCHERS)) -> list[Row]:
    """Choose rows of some engines, in the order of the tables.

    Args:
        only: names of rows; a name without an engine selects the row of each. Empty for all rows
            but those whose names end with PIPELINED.
        engines: of the rows to choose from.

    Raises:
        ValueError: one of the names is not that of a row of these engines.
    """
    possible = [row for row in all_rows() if row.engine in engines]
    names = {name for row in possible for name in (row.base, row.name)}
    chosen = {present_name(name) for name in only}
    for name in sorted(chosen - names):
        near = difflib.get_close_matches(name, names, 1)
        listed = sorted(name for name in names if PIPELINED not in name)
        hint = f'did you mean {near[0]!r}?' if near else f'there are {", ".join(listed)}'
        raise ValueError(f'there is no row {name!r} under {" or ".join(engines)}: {hint}')
    if not only:
        return [row for row in possible if not row.base.endswith(PIPELINED)]
    return [row for row in possible if {row.base, row.name} & chosen]


def present_name(name: str) -> str:
    """The present name of a row, with or without its engine, from that or an earlier name."""
    base, bracket, engine = name.partition(' (')
    pipelined = PIPELINED * base.endswith(PIPELINED)
    return f'{canonical(base.removesuffix(PIPELINED))}{pipelined}{bracket}{engine}'


def by_name(names: Sequence[str]) -> list[Row]:
    """The rows with these full names, in a worker.

    The dgc that is measured may lack some of them: these fail when they are made.
    """
    return [named(name) for name in names]


def named(name: str) -> Row:
    """The row with this full name."""
    base, _, engine = name.removesuffix(')').partition(' (')
    for row in OTHERS:
        if row.name == name:
            return row
    if base == COMPUTE:
        return Row(base, engine, COMPUTE, compute)
    try:
        return row_of(base, engine)
    except Exception as error:  # whatever this dgc raises for an algorithm that it lacks
        return Row(base, engine, COMPRESSED, failing(error))


def failing(error: Exception) -> Make:
    """What fails to make a row that the measured dgc lacks. error: of its composition."""

    def make(_: nn.Module, __: Engine, ___: Measure) -> Trained:
        raise ValueError(f'this dgc has no such row: {error!r}')

    return make
