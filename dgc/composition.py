"""A composition: one choice for each part of a gradient's path. Dense is one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dgc.clipping import Clipping
from dgc.codec import Codec
from dgc.compressors import Compressor, Dense, SampledTopK
from dgc.exchanges import AllGather, AllReduce, Exchange
from dgc.memory import Memory, MomentumCorrection, NoMemory
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule

NONFINITE = ('stop', 'skip')


@dataclass
class Composition:
    """The parts that a gradient passes, in the order in which it passes them.

    planner: which parameters travel together.
    clipping: bounds on the local gradient; None for none.
    memory: what each worker keeps back.
    compressor: what is sent where a bucket is sparse.
    codec: how that is written on the wire.
    exchange: how that is summed.
    schedule: share of the elements kept, over time.
    rules: parameters that stay dense, or have a ratio of their own.
    nonfinite: on an infinity or NaN in any worker's gradient, 'stop' raises on all workers at that
        step; 'skip' leaves the step out on all of them, which needs every gradient of the step
        before the first is sent, so that nothing overlaps with the backward pass.
    """

    memory: Memory = field(default_factory=NoMemory)
    compressor: Compressor = field(default_factory=Dense)
    codec: Codec = field(default_factory=Codec)
    exchange: Exchange = field(default_factory=AllReduce)
    schedule: RatioSchedule = field(default_factory=lambda: RatioSchedule(1.0))
    rules: LayerRules = field(default_factory=LayerRules)
    planner: Planner = field(default_factory=BySize)
    clipping: Clipping | None = None
    nonfinite: str = 'stop'

    def __post_init__(self) -> None:
        if self.nonfinite not in NONFINITE:
            raise ValueError(f'nonfinite must be one of {NONFINITE}, got {self.nonfinite!r}')
        takes_all = isinstance(self.exchange, AllReduce) or self.exchange.selects
        if isinstance(self.compressor, Dense) != takes_all:
            raise ValueError(
                f'{type(self.compressor).__name__} and {type(self.exchange).__name__} do not fit: '
                'AllReduce, SparDL and chunks take all: leave the compressor out, or set it to '
                'None; the others take a part'
            )

    @property
    def overlaps(self) -> bool:
        """Whether a bucket may start while the backward pass goes on."""
        needs_all = self.clipping is not None and self.clipping.needs_all
        return not needs_all and self.nonfinite != 'skip'

    @property
    def loses_gradient(self) -> bool:
        """Whether it sends a part, and keeps not all of the rest."""
        forgets = isinstance(self.memory, NoMemory) and not isinstance(self.exchange, AllReduce)
        return forgets or self.exchange.loses


def dense(
    gradient_clipping: Clipping | None = None,
    planner: Planner | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Everything, every step: the baseline, and the first lines of every table."""
    return Composition(clipping=gradient_clipping, planner=planner or BySize(), nonfinite=nonfinite)


def deep_gradient_compression(
    compress_ratio: float = 0.001,
    warmup_epochs: int = 0,
    warmup_coeff: float | Sequence[float] | None = None,
    warmup_stage_steps: int | None = None,
    sample_ratio: float = 0.01,
    strided_sample: bool = True,
    compress_upper_bound: float = 1.3,
    compress_lower_bound: float = 0.8,
    max_adaptation_iters: int = 10,
    resample: bool = True,
    fp16_values: bool = False,
    int32_indices: bool = False,
    values: str | None = None,
    indices: str | None = None,
    memory: Memory | None = None,
    compressor: Compressor | None = None,
    codec: Codec | None = None,
    exchange: Exchange | None = None,
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Deep Gradient Compression (Lin et al., ICLR 2018), by the setting names of its release.

    compress_ratio: share of the elements sent; above 1 it is the inverse, 1000 for 0.1 %.
    warmup_epochs, warmup_coeff, warmup_stage_steps: see RatioSchedule.
    sample_ratio … resample: see SampledTopK; without effect where ``compressor`` is given.
    values, indices: codings on the wire, see Codec; without effect where ``codec`` is given.
    fp16_values, int32_indices: the same for values='fp16' and indices='int32'.
    The other parts replace those of the paper one by one. An exchange that selects for itself
    leaves nothing to the compressor, which is then Dense.
    """
    exchange = exchange or AllGather()
    if compressor is None and exchange.selects:
        compressor = Dense()
    return Composition(
        memory=memory or MomentumCorrection(),
        compressor=compressor
        or SampledTopK(
            sample_ratio=sample_ratio,
            strided_sample=strided_sample,
            compress_upper_bound=compress_upper_bound,
            compress_lower_bound=compress_lower_bound,
            max_adaptation_iters=max_adaptation_iters,
            resample=resample,
        ),
        codec=codec or wire_codec(fp16_values, int32_indices, values, indices),
        exchange=exchange,
        schedule=RatioSchedule(
            share(compress_ratio), warmup_epochs, warmup_coeff, warmup_stage_steps
        ),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )


def share(ratio: float) -> float:
    """A ratio, or its inverse where it is above 1."""
    return 1 / ratio if ratio > 1 else ratio


def wire_codec(
    fp16_values: bool, int32_indices: bool, values: str | None, indices: str | None
) -> Codec:
    """The codec of these settings; fp32 and int64 where there is none.

    Raises ValueError where two of them speak about the same part of a message.
    """
    if fp16_values and values is not None:
        raise ValueError(f'values={values!r} is set already: leave out fp16_values')
    if int32_indices and indices is not None:
        raise ValueError(f'indices={indices!r} is set already: leave out int32_indices')
    if values is None:
        values = 'fp16' if fp16_values else 'fp32'
    if indices is None:
        indices = 'int32' if int32_indices else 'int64'
    return Codec(values, indices)


def about(composition: Composition, steps_per_epoch: int | None) -> dict[str, str]:
    """What ranks must have alike so that their messages fit together, by aspect, as text."""
    parts = (
        composition.codec, composition.exchange, composition.memory, composition.clipping,
        composition.rules, composition.nonfinite,
    )  # fmt: skip
    schedule = composition.schedule
    by_epoch = schedule.warmup_epochs and schedule.stage_steps is None
    return {
        'the composition': ' '.join(map(spelled, parts)),
        'the schedule of the ratio': repr(schedule),
        'steps_per_epoch, which the warm-up goes by': str(steps_per_epoch) if by_epoch else '',
    }


def spelled(part: object) -> str:
    """A part's type and plain settings, and those of the parts that it has; no other objects."""
    if part is None or isinstance(part, bool | int | float | str):
        return repr(part)
    if isinstance(part, Mapping):
        return spelled([[key, value] for key, value in part.items()])
    if isinstance(part, list | tuple):
        return f'[{", ".join(map(spelled, part))}]'
    settings = [
        f'{name}={spelled(value)}'
        for name, value in getattr(part, '__dict__', {}).items()
        if not name.startswith('_')
    ]
    return f'{type(part).__name__}({", ".join(settings)})'
