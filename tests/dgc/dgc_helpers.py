"""Small worlds to train in: parameters whose gradients are known, and workers that take notes.

They train on the CPU or, where DGC_TEST_DEVICE says so, on a GPU ('cuda', as in ``make gpu``) or on
one that is not there ('pretended', see pretend_gpu.py).
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

import dgc
from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors import TopK
from dgc.costmodel import Line
from dgc.engines import LocalEngine
from dgc.exchanges import AllGather
from dgc.memory import AveragedMomentum
from dgc.ops import Update
from dgc.optim import OneBitAdam
from dgc.planner import PerTensor, PlanRequest
from dgc.planner.forecast import FREE, Costs, Forecast, Route, Timing
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule
from dgc.state import Elements, Values
from dgc.wiring import allocate, spec_of

DEVICE = torch.device(os.environ.get('DGC_TEST_DEVICE', 'cpu').replace('pretended', 'cuda'))
if os.environ.get('DGC_TEST_DEVICE') == 'pretended':
    from pretend_gpu import pretended

    FOR_GOOD = pretended()
    FOR_GOOD.__enter__()
SHAPES = {'wide.weight': (64, 20), 'narrow.weight': (16, 10), 'bias': (10,), 'scale': ()}
KEPT = ('residual', 'velocity')  # the buffers in which a memory keeps what it has not sent


# What is kept, and an update that does not fit it or that no kernel is for.
MISFITS = [
    (torch.zeros(3), Update([torch.zeros(4)])),
    (torch.zeros(3), Update([torch.zeros(3)], torch.zeros(2), 0.9)),
    (torch.zeros(3).double(), Update([torch.zeros(3)])),
    (torch.zeros(3, 1), Update([torch.zeros(3)])),
    (torch.zeros(6)[::2], Update([torch.zeros(3)])),
    (torch.zeros(3), Update([torch.zeros(3, dtype=torch.float64)])),
]

Named = list[tuple[str, Parameter]]


def parameters(
    shapes: Mapping[str, tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32
) -> Named:
    """Named parameters, the same at every call."""
    draw = torch.Generator().manual_seed(0)
    return [
        (name, Parameter(torch.randn(shape, generator=draw).to(DEVICE, dtype)))
        for name, shape in shapes.items()
    ]


def exact(ratio: float = 0.05, **parts) -> dgc.Composition:
    """Deep Gradient Compression by exact top-k, of each tensor by itself."""
    return dgc.deep_gradient_compression(
        ratio, **{'compressor': TopK(), 'planner': PerTensor(), **parts}
    )


def forecast(
    arrivals: Mapping[str, float],
    backward: float = 10.0,
    start: float = 0.0,
    byte: float = 0.0,
    compress: Line = FREE,
    workers: int = 4,
    moving: Line = FREE,
    **costs,
) -> Forecast:
    """Of all-gathers of fp32 and int32. start, byte: of the exchange, in seconds."""
    its = Route(compress, Line(start, byte), moving=moving)
    settings = {'sparse': its, 'dense': its, 'copy': FREE, **costs}
    timing = Timing(arrivals, backward, Costs(workers, **settings))
    return Forecast(timing, AllGather(), Codec('fp32', 'int32'))


def target(parameter: Tensor, rank: int, step: int, index: int) -> Tensor:
    """What worker ``rank`` pulls its parameter number ``index`` towards at ``step``."""
    seed = rank * 1_000_000 + step * 1_000 + index + 1
    return drawn(tuple(parameter.shape), parameter.dtype, seed, DEVICE)


@lru_cache(maxsize=10_000)
def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: torch.device) -> Tensor:
    """Normal numbers; kept, since many runs of a session take the same steps."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw).to(device, dtype)


def loss(named: Named, rank: int, step: int) -> Tensor:
    """``½ Σ ‖p − target‖²``, whose gradients are ``p − target``."""
    return sum(
        (parameter - target(parameter, rank, step, index)).square().sum() / 2
        for index, (_, parameter) in enumerate(named)
    )


def wrap(
    named: Named,
    composition: dgc.Composition,
    engine: dgc.Engine | None = None,
    lr: float = 0.1,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    **settings,
) -> dgc.DistributedOptimizer:
    """A DistributedOptimizer over the optimizer that fits the composition's memory."""
    if isinstance(composition.memory, AveragedMomentum):
        adam = OneBitAdam([p for _, p in named], lr, (0.9, 0.99), 1e-4, weight_decay)
        return dgc.DistributedOptimizer(
            adam, named, composition, engine or LocalEngine(), **settings
        )
    optimizer = dgc.DGCSGD if composition.memory.holds_momentum else torch.optim.SGD
    inner = optimizer(
        [parameter for _, parameter in named],
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
    )
    return dgc.DistributedOptimizer(inner, named, composition, engine or LocalEngine(), **settings)


def train(
    optimizer: dgc.DistributedOptimizer, named: Named, steps: int | Iterable[int], rank: int = 0
) -> None:
    """Take ``steps``, a number or a range, each from ``loss``."""
    for step in range(steps) if isinstance(steps, int) else steps:
        optimizer.zero_grad()
        loss(named, rank, step).backward()
        optimizer.step()


def values(named: Named) -> list[Tensor]:
    """Copies of the parameters."""
    return [parameter.detach().clone() for _, parameter in named]


def set_gradients(named: Named, gradients: Mapping[str, Tensor]) -> None:
    """A backward pass whose gradients are exactly ``gradients``; the others take no part."""
    sum(
        (parameter * gradients[name].to(DEVICE)).sum()
        for name, parameter in named
        if name in gradients
    ).backward()


def bucket_of(
    gradient: Tensor,
    buffers: Iterable[str] = (),
    momentum: float = 0.0,
    nesterov: bool = False,
    density: float | None = None,
) -> Bucket:
    """A bucket of one parameter of two dimensions, with this gradient and these memory tensors."""
    group = {'momentum': momentum, 'nesterov': nesterov}
    parameter = Parameter(torch.zeros(1, gradient.numel(), dtype=gradient.dtype, device=DEVICE))
    shape = tuple(parameter.shape)
    spec = BucketSpec.of(
        [ParameterSpec('weight', shape, gradient.dtype, DEVICE)], DensitySchedule(density or 1.0)
    )
    parts = {
        'memory': {name: Elements() for name in buffers},
        'compressor': {'search': Values()},
        'codec': {'draws': Values()},
    }
    bucket = Bucket(spec, [(parameter, group)], parts)
    bucket.gradient.copy_(gradient)
    bucket.density = density
    return bucket


def request(
    named: Named,
    rules: LayerRules | None = None,
    schedule: DensitySchedule | None = None,
    group: Mapping[str, object] | None = None,
    **settings,
) -> PlanRequest:
    """What a planner is asked for these parameters, all in one group; compressed by default."""
    specs = [spec_of((name, parameter, dict(group or {}))) for name, parameter in named]
    return PlanRequest(specs, rules or LayerRules(), schedule or DensitySchedule(0.01), **settings)


def plan_buckets(
    named: Named,
    composition: dgc.Composition,
    engine: dgc.Engine | None = None,
    group: Mapping[str, object] | None = None,
) -> list[Bucket]:
    """The buckets of a composition's planner, with storage for all its parts."""
    asked = request(named, composition.rules, composition.schedule, group)
    specs = composition.planner.plan(asked)
    live = [(name, parameter, dict(group or {})) for name, parameter in named]
    return allocate(specs, live, composition, engine or LocalEngine())


def kept_by(bucket: Bucket) -> Tensor:
    """What a bucket's memory keeps back, float32 ``[n]``; zeros where it keeps nothing."""
    held = [bucket.buffers[name].clone().float() for name in KEPT if name in bucket.buffers]
    return held[0] if held else torch.zeros(bucket.numel, device=bucket.device)


class Selection(NamedTuple):
    """One selection of a memory. Each float32 ``[n]``, but for the last two."""

    gradient: Tensor
    corrected: Tensor
    sent: Tensor
    kept: Tensor
    is_dense: bool
    indices: Tensor | None


def watch(composition: dgc.Composition) -> dict[str, list[Selection]]:
    """Note what ``composition``'s memory is given, and what is sent of it, by bucket."""
    memory, notes, before = composition.memory, {}, {}
    select, remove_sent = memory.select, memory.remove_sent

    def watched_select(bucket, compressor):
        gradient = torch.cat(bucket.pieces).float()
        corrected = memory.compensate(twin(bucket)).float().clone()
        selected = select(bucket, compressor)
        before[bucket.name] = gradient, corrected, selected.to_dense()
        return selected

    def watched_remove_sent(bucket, sent):
        gradient, corrected, delivered = before[bucket.name]
        if not sent.is_dense:  # what is dense may lie where the sum is by now
            delivered = sent.to_dense()
        remove_sent(bucket, sent)
        indices = None if sent.is_dense else sent.indices.clone()
        note = Selection(gradient, corrected, delivered, kept_by(bucket), sent.is_dense, indices)
        notes.setdefault(bucket.name, []).append(note)

    memory.select, memory.remove_sent = watched_select, watched_remove_sent
    return notes


def twin(bucket: Bucket) -> Bucket:
    """A bucket with the same contents and storage of its own."""
    other = copy.copy(bucket)
    other.adopt(torch.cat(bucket.pieces))
    other.state = bucket.state.snapshot()
    return other


def owed(
    notes: list[Selection], momentum: float, nesterov: bool, memory: dgc.memory.Memory
) -> Tensor:
    """All that one worker's memory was given to deliver, float64 ``[n]``.

    The sum of its gradients or, where it holds the momentum, of its velocities; the momentum is
    set to zero where the worker's own messages went, if they were sparse and the memory masks.
    """
    gradients = [note.gradient.double() for note in notes]
    if not memory.holds_momentum:
        return sum(gradients)
    u, total = torch.zeros_like(gradients[0]), torch.zeros_like(gradients[0])
    for gradient, note in zip(gradients, notes, strict=True):
        if nesterov:
            u = momentum * (u + gradient)
            total += u + gradient
        else:
            u = momentum * u + gradient
            total += u
        if memory.momentum_masking and not note.is_dense:
            u[note.indices] = 0
    return total


def keep_count(numel: int, ratio: float) -> int:
    """``k`` of a ratio, computed apart from the code under test."""
    return max(1, min(numel, math.ceil(numel * ratio)))
