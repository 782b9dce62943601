"""The composition of asynchronous training: what workers send, what the server answers, scaling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.algorithms.deep_gradient_compression import published_schedule, wire_codec
from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.clipping import Clipping
from dgc.codec import Codec
from dgc.composition import check_feedback
from dgc.compressors import Compressor, Dense, SampledTopK, keep
from dgc.corrected import Corrected
from dgc.memory import Memory, SAMomentum
from dgc.optim import DGCSGD
from dgc.parameter_server.protocol import is_cheaper_dense
from dgc.planner import BySize, Plan, Planner, PlanRequest
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule, density_of
from dgc.sparse import Sparse, gather
from dgc.state import Entries, Values
from dgc.wiring import Named, check_names, spec_of, trained

STATISTICS_PERIOD = 10  # steps, which renew most of a BatchNorm average with momentum 0.1


class Changed(Compressor):
    """Selects every element that is not zero: no secondary compression."""

    def budget(self, spec: BucketSpec, density: float) -> int:
        """Return ``n``."""
        return spec.numel

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return all non-zero elements, whatever ``density`` is."""
        values = corrected.materialize()
        return gather(values, values.nonzero().squeeze(1))


class Scaling(ABC):
    """The factor by which the server multiplies an update."""

    @abstractmethod
    def factor(self, staleness: int) -> float:
        """Return the factor of an update whose model was ``staleness`` updates old."""


class Unscaled(Scaling):
    """Applies every update as it is."""

    def factor(self, staleness: int) -> float:
        """Return 1."""
        return 1.0


class InverseRounds(Scaling):
    """Divides a movement by one more than the rounds that it is late (asynchronous DiLoCo)."""

    def factor(self, staleness: int) -> float:
        """Return ``1 / (1 + staleness)``."""
        return 1 / (1 + staleness)


class InverseStaleness(Scaling):
    """Divides an update by its staleness from 2 on (Zhang et al., IJCAI 2016, equation 6)."""

    def factor(self, staleness: int) -> float:
        """Return ``1 / max(staleness, 1)``."""
        return 1 / max(staleness, 1)


@dataclass
class Asynchronous:
    """The parts of asynchronous training with a parameter server.

    Attributes:
        memory: Error feedback and momentum of a worker's updates.
        compressor: Selects what a worker sends of its update.
        secondary: Selects what the server answers of θ − θ_w.
        codec: Encodes sparse messages in both directions.
        schedule: Density of a worker's updates over time.
        secondary_ratio: ``compress_ratio`` of the server's answers; None for that of ``schedule``.
        rules: Which parameters stay dense, as in a synchronous Composition.
        planner: How parameters are grouped into buckets, as in a synchronous Composition.
        clipping: Bounds on a worker's gradient; None for none.
        scaling: Weight of an update by its staleness.
        statistics_period: Steps between two reports of a worker's BatchNorm statistics.
        always_sparse: Whether messages are sparse also where they are longer than dense ones.
        ratio_follows_rate: Whether the density of a worker's updates is multiplied by its learning
            rate, as a fraction of the full one: a variant of the release.
        rate_when_sent: Whether an update is multiplied by the learning rate when it is sent, as in
            the release's DGC, instead of before it is accumulated.
    """

    memory: Memory = field(default_factory=SAMomentum)
    compressor: Compressor = field(default_factory=SampledTopK)
    secondary: Compressor = field(default_factory=SampledTopK)
    codec: Codec = field(default_factory=Codec)
    schedule: DensitySchedule = field(default_factory=lambda: DensitySchedule(0.01))
    secondary_ratio: float | None = None
    rules: LayerRules = field(default_factory=LayerRules)
    planner: Planner = field(default_factory=BySize)
    clipping: Clipping | None = None
    scaling: Scaling = field(default_factory=Unscaled)
    statistics_period: int = STATISTICS_PERIOD
    always_sparse: bool = False
    ratio_follows_rate: bool = False
    rate_when_sent: bool = False

    def __post_init__(self) -> None:
        if self.secondary_ratio is not None and not self.secondary_ratio > 0:
            raise ValueError(f'secondary_ratio must be above 0, got {self.secondary_ratio}')
        if self.statistics_period < 1:
            raise ValueError(f'statistics_period must be at least 1, got {self.statistics_period}')

        if self.planner.needs_timing or self.planner.saved_plan is not None:
            raise ValueError(
                f'{type(self.planner).__name__} is for synchronous training, since a parameter '
                'server measures no times and reads no plan: leave the planner out'
            )
        check_feedback(self.codec, self.memory)
        if self.codec.chunk is not None:
            raise ValueError(
                f'indices={self.codec.indices!r} is for equally many elements of each chunk of '
                f"{self.codec.chunk}, and a parameter server sends others: set indices='packed'"
            )
        if self.codec.indices == 'none':
            raise ValueError(
                "indices='none' is for dense messages: a parameter server sends sparse"
            )
        for name in ('ratio_follows_rate', 'rate_when_sent'):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f'{name} must be True or False, got {getattr(self, name)!r}')
        if self.memory.needs_mean or self.memory.applies_rate:
            raise ValueError(
                f'{type(self.memory).__name__} does not fit a parameter server, whose workers send '
                'updates and receive no mean: use SAMomentum, MomentumCorrection or Residual'
            )
        if self.clipping is not None and self.clipping.dense_after_mean:
            raise ValueError(
                'gradient_clipping.dense_after_mean clips the mean gradient, and workers of a '
                'parameter server receive none: leave dense_after_mean out'
            )

    def trained(self, settings: Optimizer, named: list[tuple[str, Parameter]]) -> list[Named]:
        """Return the parameters that ``settings`` trains, each with its group.

        Args:
            settings: The SGD whose groups hold the hyperparameters.
            named: All parameters of the model.

        Raises:
            ValueError: For settings with which asynchronous training is impossible.
        """
        check_settings(settings, self.memory)
        return self.moved(settings, named)

    def moved(self, settings: Optimizer, named: list[tuple[str, Parameter]]) -> list[Named]:
        """Return the parameters that ``settings`` trains, whatever optimizer it is.

        Raises:
            ValueError: For parameters that a server cannot hold.
        """
        check_names(settings, named)
        self.rules.check_patterns([name for name, _ in named])
        parameters = trained(settings, named)
        others = [name for name, p, _ in parameters if p.dtype != torch.float32]
        if others:
            raise ValueError(
                f'{", ".join(others)}: a parameter server holds float32 parameters; '
                'train the model in float32'
            )
        if not parameters:
            raise ValueError('no parameter needs a gradient: there is nothing to train')
        return parameters

    def plan(self, parameters: Sequence[Named]) -> Plan:
        """Group parameters into buckets, the same on the server and its workers."""
        specs = [spec_of(named) for named in parameters]
        return Plan(self.planner.plan(PlanRequest(specs, self.rules, self.schedule)))

    def state_for(self, spec: BucketSpec) -> dict[str, Entries]:
        """Return what a worker's parts keep of a bucket between steps, by role."""
        return {
            'memory': self.memory.state_for(spec),
            'compressor': self.compressor.state_for(spec),
            'codec': {'draws': Values()},
        }

    def upload_compressor(
        self, bucket: Bucket, step: int, steps_per_epoch: int, rate: float = 1.0
    ) -> Compressor:
        """Set a bucket's density for a worker's ``step``; return what selects with it.

        Args:
            bucket: Whose density is set.
            step: Counted from 0.
            steps_per_epoch: Of a worker.
            rate: The learning rate as a fraction of the full one.
        """
        bucket.density = self._density(bucket, step, steps_per_epoch)
        if self.ratio_follows_rate and bucket.density is not None:
            bucket.density = min(max(bucket.density * rate, 1 / bucket.numel), 1.0)
        return self.compressor if self._is_sparse(bucket) else Dense()

    def download_compressor(self, bucket: Bucket, step: int, steps_per_epoch: int) -> Compressor:
        """Set a bucket's density for the server's answer at ``step``; return what selects with
        it."""
        bucket.density = self._density(bucket, step, steps_per_epoch)
        if self.secondary_ratio is not None and bucket.spec.schedule is not None:
            bucket.density = density_of(self.secondary_ratio)
        return self.secondary if self._is_sparse(bucket) else Dense()

    def _density(self, bucket: Bucket, step: int, steps_per_epoch: int) -> float | None:
        schedule = bucket.spec.schedule
        return None if schedule is None else schedule.at(step, steps_per_epoch)

    def _is_sparse(self, bucket: Bucket) -> bool:
        """Return whether the bucket's messages are sparse at its density."""
        if bucket.density is None:
            return False
        return not self.prefers_dense(bucket.numel, keep(bucket.numel, bucket.density))

    def prefers_dense(self, numel: int, k: int) -> bool:
        """Return whether k of n elements are sent as n: where that is no longer, unless
        ``always_sparse``."""
        return not self.always_sparse and is_cheaper_dense(numel, k, self.codec)


def dual_way(
    compress_ratio: float = 0.01,
    secondary_ratio: float | None = None,
    warmup_epochs: int = 0,
    warmup_coeff: float | Sequence[float] | None = None,
    warmup_stage_steps: int | None = None,
    warmup_steps: int = 0,
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
    always_sparse: bool = False,
    ratio_follows_rate: bool = False,
    rate_when_sent: bool = False,
) -> Asynchronous:
    """Return dual-way gradient sparsification, DGS (Yan, arXiv 1910.10929).

    Args:
        compress_ratio: Density of a worker's updates; above 1 its inverse, 100 for 1 %.
        secondary_ratio: Density of the server's answers, likewise; None for ``compress_ratio``.
        warmup_epochs: Epochs in which the density falls to ``compress_ratio``; see DensitySchedule.
        warmup_coeff: Density of each warm-up epoch, or the factor between two; see DensitySchedule.
        warmup_stage_steps: Steps per stage of the warm-up in place of an epoch's.
        warmup_steps: A worker's steps in which the density falls, in place of ``warmup_epochs``.
        fp16_values: Send values in half precision.
        int32_indices: Send indices in 32 bits.
        values: Coding of the values by name, in place of ``fp16_values``.
        indices: Coding of the indices by name, in place of ``int32_indices``.
        memory: Error feedback of a worker; SAMomentum by default, as in the paper.
        compressor: Selects what a worker sends.
        secondary: Selects what the server answers.
        codec: Encodes sparse messages, in place of the four settings of codings.
        rules: Which parameters stay dense.
        planner: How parameters are grouped into buckets.
        gradient_clipping: Bounds on a worker's gradient; None for none.
        scaling: Weight of an update by its staleness; None applies every update as it is.
        statistics_period: Steps between two reports of a worker's BatchNorm statistics.
        always_sparse: Whether to send sparse messages also where they are longer than dense ones.
        ratio_follows_rate: Whether the density of a worker's updates is multiplied by its learning
            rate, as a fraction of the full one.
        rate_when_sent: Whether updates are multiplied by the learning rate when they are sent.
    """
    return Asynchronous(
        memory=memory or SAMomentum(),
        compressor=compressor or SampledTopK(),
        secondary=secondary or SampledTopK(),
        codec=codec or wire_codec(fp16_values, int32_indices, values, indices),
        schedule=published_schedule(
            compress_ratio, warmup_epochs, warmup_coeff, warmup_stage_steps, warmup_steps
        ),
        secondary_ratio=secondary_ratio,
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        scaling=scaling or Unscaled(),
        statistics_period=statistics_period,
        always_sparse=always_sparse,
        ratio_follows_rate=ratio_follows_rate,
        rate_when_sent=rate_when_sent,
    )


def check_settings(settings: Optimizer, memory: Memory) -> None:
    """Raise ValueError for an optimizer whose settings asynchronous training cannot apply."""
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
                f'{type(memory).__name__} holds no momentum, and the server applies none: '
                "set the optimizer's momentum to 0, or use SAMomentum"
            )
        memory.check(momentum, group.get('nesterov', False))
