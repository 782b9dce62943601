"""Asynchronous training as a composition: what goes up, what comes down, and what counts how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.buckets import Bucket
from dgc.clipping import Clipping
from dgc.codec import Codec
from dgc.composition import share, wire_codec
from dgc.compressors import Compressor, Dense, SampledTopK, keep
from dgc.memory import Memory, SAMomentum
from dgc.optim import DGCSGD
from dgc.optimizer import check_names, trained
from dgc.parameter_server.sections import is_cheaper_dense
from dgc.parameter_server.staleness import Scaling, Unscaled
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule
from dgc.sparse import Sparse, gather

STATISTICS_PERIOD = 10  # of BatchNorm's momentum of 0.1: so many steps renew most of an average


class Changed(Compressor):
    """Every element that is not zero: no secondary compression."""

    def compress(self, corrected: Tensor, ratio: float) -> Sparse:
        """However many there are."""
        return gather(corrected, corrected.nonzero().squeeze(1))


@dataclass
class Asynchronous:
    """The parts of asynchronous training with a parameter server.

    memory: what a worker keeps back of its updates.
    compressor: what it sends of them.
    secondary: what the server answers of the difference between its model and the worker's.
    codec: how either is written on the wire.
    schedule: share of the elements that a worker sends, over time.
    secondary_ratio: share of them that the server answers at most; None: the schedule's.
    rules, planner: as in a synchronous Composition.
    clipping: bounds on a worker's gradient; None for none.
    scaling: how much a stale update counts.
    statistics_period: steps after which a worker reports BatchNorm's statistics.
    """

    memory: Memory = field(default_factory=SAMomentum)
    compressor: Compressor = field(default_factory=SampledTopK)
    secondary: Compressor = field(default_factory=SampledTopK)
    codec: Codec = field(default_factory=Codec)
    schedule: RatioSchedule = field(default_factory=lambda: RatioSchedule(0.01))
    secondary_ratio: float | None = None
    rules: LayerRules = field(default_factory=LayerRules)
    planner: Planner = field(default_factory=BySize)
    clipping: Clipping | None = None
    scaling: Scaling = field(default_factory=Unscaled)
    statistics_period: int = STATISTICS_PERIOD

    def __post_init__(self) -> None:
        if self.secondary_ratio is not None and not self.secondary_ratio > 0:
            raise ValueError(f'secondary_ratio must be above 0, got {self.secondary_ratio}')
        if self.statistics_period < 1:
            raise ValueError(f'statistics_period must be at least 1, got {self.statistics_period}')

    def plan(
        self, settings: Optimizer, named: list[tuple[str, Parameter]], buffers: Sequence[str]
    ) -> list[Bucket]:
        """The buckets of what ``settings`` trains, alike on the server and on the workers.

        Raises ValueError for settings that asynchronous training cannot honour.
        """
        check_names(settings, named)
        check_settings(settings, self.memory)
        parameters = trained(settings, named)
        others = [name for name, p, _ in parameters if p.dtype != torch.float32]
        if others:
            raise ValueError(
                f'{", ".join(others)}: a parameter server keeps float32 parameters; '
                'train the model in float32'
            )
        if not parameters:
            raise ValueError('no parameter needs a gradient: there is nothing to train')
        return self.planner.plan(parameters, self.rules, self.schedule, buffers)

    def up(self, bucket: Bucket, step: int, steps_per_epoch: int) -> Compressor:
        """What chooses from a worker's update at ``step``; sets the bucket's ratio."""
        bucket.ratio = self._ratio(bucket, step, steps_per_epoch)
        return self._or_dense(self.compressor, bucket)

    def down(self, bucket: Bucket, step: int, steps_per_epoch: int) -> Compressor:
        """What chooses from the difference of models at ``step``; sets the bucket's ratio."""
        bucket.ratio = self._ratio(bucket, step, steps_per_epoch)
        if self.secondary_ratio is not None and bucket.schedule is not None:
            bucket.ratio = self.secondary_ratio
        return self._or_dense(self.secondary, bucket)

    def _ratio(self, bucket: Bucket, step: int, steps_per_epoch: int) -> float:
        return 1.0 if bucket.schedule is None else bucket.schedule.at(step, steps_per_epoch)

    def _or_dense(self, compressor: Compressor, bucket: Bucket) -> Compressor:
        k = keep(bucket.numel, bucket.ratio)
        dense = bucket.ratio >= 1 or is_cheaper_dense(bucket.numel, k, self.codec)
        return Dense() if dense else compressor


def dual_way(
    compress_ratio: float = 0.01,
    secondary_ratio: float | None = None,
    warmup_epochs: int = 0,
    warmup_coeff: float | Sequence[float] | None = None,
    warmup_stage_steps: int | None = None,
    fp16_values: bool = False,
    int32_indices: bool = False,
    values: str | None = None,
    indices: str | None = None,
    memory: Memory | None = None,
    compressor: Compressor | None = None,
    secondary: Compressor | None = None,
    codec: Codec | None = None,
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    scaling: Scaling | None = None,
    statistics_period: int = STATISTICS_PERIOD,
) -> Asynchronous:
    """Dual-way gradient sparsification (Yan, arXiv 1910.10929), by the names of its relatives.

    compress_ratio: share of the elements sent; above 1 it is the inverse, 100 for 1 %.
    secondary_ratio: the same for the server's answers; None: as the workers.
    warmup_epochs, warmup_coeff, warmup_stage_steps: see RatioSchedule.
    values, indices, fp16_values, int32_indices: codings on the wire, as for DGC.
    The other parts replace those of the paper one by one; see Asynchronous.
    """
    return Asynchronous(
        memory=memory or SAMomentum(),
        compressor=compressor or SampledTopK(),
        secondary=secondary or SampledTopK(),
        codec=codec or wire_codec(fp16_values, int32_indices, values, indices),
        schedule=RatioSchedule(
            share(compress_ratio), warmup_epochs, warmup_coeff, warmup_stage_steps
        ),
        secondary_ratio=None if secondary_ratio is None else share(secondary_ratio),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        scaling=scaling or Unscaled(),
        statistics_period=statistics_period,
    )


def check_settings(settings: Optimizer, memory: Memory) -> None:
    """Raise ValueError where an optimizer's settings mean nothing to a parameter server."""
    if not isinstance(settings, torch.optim.SGD | DGCSGD):
        raise ValueError(
            f'{type(settings).__name__} cannot train asynchronously: the update is that of SGD, '
            'with momentum in the memory; use torch.optim.SGD'
        )
    for group in settings.param_groups:
        if group.get('dampening') or group.get('maximize'):
            raise ValueError('asynchronous training has no dampening and no maximize: leave them 0')
        momentum = group.get('momentum', 0.0)
        if momentum and not memory.holds_momentum:
            raise ValueError(
                f'{type(memory).__name__} holds no momentum, and nobody else would apply the '
                "optimizer's: set its momentum to 0, or use SAMomentum"
            )
        memory.check(momentum, group.get('nesterov', False))
