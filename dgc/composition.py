"""A composition: one choice for each part of a gradient's path. Dense training is one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from dgc.bucket_spec import BucketSpec
from dgc.checks import check_part
from dgc.clipping import Clipping
from dgc.codec import Codec, Contraction, Unbiased
from dgc.compressors import Compressor, Dense
from dgc.control import Control
from dgc.exchanges import AllReduce, Exchange, Hierarchical
from dgc.memory import Memory, NoMemory
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule
from dgc.sparse import Payload
from dgc.state import Elements, Entries, Resize, Values
from dgc.transforms import Identity, Transform
from dgc.volume import Volume

NONFINITE = ('stop', 'skip')


@dataclass
class Composition:
    """The parts that process a gradient, in the order in which they do.

    Attributes:
        planner: Divides the parameters among buckets.
        clipping: Bounds the local gradient; None for none.
        transform: Changes the basis before error feedback, and back after the exchange.
        memory: Error feedback: accumulates residuals on each rank between steps.
        compressor: Selects the elements of a compressed bucket that are sent.
        codec: Writes messages as bytes.
        exchange: Combines the ranks' messages.
        schedule: The density over time.
        rules: Parameters that are never compressed, or have a density of their own.
        nonfinite: On an infinity or NaN in any rank's gradient, 'stop' raises an error on all ranks
            at that step; 'skip' skips the step on all ranks and restores all state, at the cost
            of a copy of the memory at each step (see Reducer).
        always_sparse: Whether a bucket is compressed also where its messages would be longer than
            a dense all-reduce, as in the release of Deep Gradient Compression. By default such a
            bucket is sent uncompressed.
        control: Changes densities during training, from what the ranks measure; None leaves them
            as scheduled.

    Raises:
        TypeError: Where a part is not an object of its class.
        ValueError: Where parts cannot be combined.
    """

    memory: Memory = field(default_factory=NoMemory)
    compressor: Compressor = field(default_factory=Dense)
    codec: Codec = field(default_factory=Codec)
    exchange: Exchange = field(default_factory=AllReduce)
    schedule: DensitySchedule = field(default_factory=DensitySchedule)
    rules: LayerRules = field(default_factory=LayerRules)
    planner: Planner = field(default_factory=BySize)
    clipping: Clipping | None = None
    transform: Transform = field(default_factory=Identity)
    nonfinite: str = 'stop'
    always_sparse: bool = False
    control: Control | None = None

    def __post_init__(self) -> None:
        self._check_types()
        if self.nonfinite not in NONFINITE:
            raise ValueError(f'nonfinite must be one of {NONFINITE}, got {self.nonfinite!r}')
        self._check_payload()
        self._check_control()
        self._check_evenness()
        self._check_coding()

    def _check_types(self) -> None:
        """Refuse names, classes and numbers in the places of parts."""
        check_part('memory', self.memory, Memory, 'Residual()')
        check_part('compressor', self.compressor, Compressor, 'SampledTopK()')
        check_part('codec', self.codec, Codec, "Codec('int8', 'packed')")
        check_part('exchange', self.exchange, Exchange, 'AllGather()')
        check_part('schedule', self.schedule, DensitySchedule, 'DensitySchedule(0.001)')
        check_part('rules', self.rules, LayerRules, 'LayerRules()')
        check_part('planner', self.planner, Planner, 'BySize()')
        check_part('transform', self.transform, Transform, 'BlockDCT()')
        if self.control is not None:
            check_part('control', self.control, Control, 'GraVAC()')
        if self.clipping is not None:
            name = 'gradient_clipping'  # in the settings of all algorithms
            check_part(name, self.clipping, Clipping, 'ClipByModelNorm(1.0)')
            if self.clipping.dense_after_mean:
                self.memory.check_clipped_mean()

    def _check_payload(self) -> None:
        """Check that exchange and codec accept the compressor's messages."""
        compressor, exchange = type(self.compressor).__name__, type(self.exchange).__name__
        payload = self.compressor.payload
        if payload not in self.exchange.accepts:
            wanted = ' or '.join(sorted(each.value for each in self.exchange.accepts))
            remedy = (
                'leave the compressor out, or set it to None'
                if payload is Payload.SPARSE
                else 'choose a compressor that selects, such as SampledTopK'
            )
            raise ValueError(
                f'{compressor} and {exchange} do not fit: {exchange} takes {wanted} messages and '
                f'{compressor} makes {payload.value} ones: {remedy}'
            )
        written = self.exchange.writes(payload)
        if written is not None and (written is Payload.DENSE) != (self.codec.indices == 'none'):
            indices = "'none'" if written is Payload.DENSE else "'int64', 'int32' or 'packed'"
            raise ValueError(
                f'{exchange} writes {written.value} messages and indices={self.codec.indices!r} '
                f'does not fit them: set indices to {indices}'
            )

    def _check_control(self) -> None:
        """Refuse a control of densities where there are none, or nothing is kept that tells the
        error of a message."""
        if self.control is None:
            return
        name = type(self.control).__name__
        if self.compressor.payload is not Payload.SPARSE:
            raise ValueError(
                f'{name} changes the density of messages, and {type(self.compressor).__name__} '
                'selects none: choose a compressor that does, such as SampledTopK, and an exchange '
                'of its messages, such as AllGather'
            )
        spec = BucketSpec.of_shape(4096)
        if self.compressor.budget(spec, 0.01) == self.compressor.budget(spec, 0.1):
            raise ValueError(
                f'{name} changes densities, on which {type(self.compressor).__name__} does not '
                'depend: choose another compressor, such as SampledTopK'
            )
        if not self.memory.unsent:
            raise ValueError(
                f'{name} measures what a message leaves in a residual, and '
                f'{type(self.memory).__name__} has none: use Residual or MomentumCorrection'
            )

    def _check_evenness(self) -> None:
        """Refuse an index coding of equally many elements a chunk, where others are sent."""
        chunk = self.codec.chunk
        is_even = self.exchange.keeps_selection and self.compressor.chunk == chunk
        if chunk is not None and not is_even:
            raise ValueError(
                f'indices={self.codec.indices!r} writes equally many elements of each chunk of '
                f'{chunk}, which {type(self.compressor).__name__} and '
                f"{type(self.exchange).__name__} do not send: set indices to 'packed', or use "
                f'BlockTopK(k, ChunkLayout({chunk})) and AllGather()'
            )

    def _check_coding(self) -> None:
        """Refuse codings and scalings whose error the parts would make grow without bound."""
        exchange, name = self.exchange, type(self.exchange).__name__
        if exchange.writes(self.compressor.payload) is not None:
            check_feedback(self.codec, self.memory)
            if isinstance(self.codec.error, Unbiased) and (exchange.recodes or exchange.feeds_back):
                reason = (
                    'several ranks write the same sum, each with random numbers of its own'
                    if exchange.recodes
                    else 'it has error feedback of its own'
                )
                raise ValueError(
                    f'values={self.codec.values!r} is stochastic and does not fit {name}, in which '
                    f'{reason}: use a coding that is a contraction, or AllGather'
                )
        if exchange.unbiased and self.memory.feeds_back:
            raise ValueError(
                f'{name}(unbiased=True) scales what it sends, which '
                f'{type(self.memory).__name__} would feed back: use NoMemory, or unbiased=False'
            )
        sums = [
            isinstance(entry, Elements) and entry.resize is Resize.SUM
            for entry in self.memory.state_for(BucketSpec.of_shape(1)).values()
        ]
        if isinstance(exchange, Hierarchical) and not all(sums):
            raise ValueError(
                f'{name} moves memories to the first rank of a machine, and '
                f'{type(self.memory).__name__} must be the same on all: choose another exchange'
            )

    @property
    def overlaps(self) -> bool:
        """Whether a bucket may be sent while the backward pass goes on."""
        return self.clipping is None or not self.clipping.needs_all

    @property
    def ignores_values(self) -> bool:
        """Whether a coding of values is set, and the exchange sends float32 without a codec."""
        uncoded = self.exchange.writes(self.compressor.payload) is None
        return uncoded and self.codec.values != 'fp32'

    @property
    def loses_gradient(self) -> bool:
        """Whether unsent or truncated gradient is discarded, and the result is biased."""
        exchange, payload = self.exchange, self.compressor.payload
        if exchange.loses:
            return True
        if self.memory.feeds_back or not exchange.is_estimate or exchange.unbiased:
            return False
        drops = payload is Payload.SPARSE or exchange.selects or exchange.approximates
        codes = exchange.writes(payload) is not None
        return drops or (codes and loses_without_feedback(self.codec))

    @property
    def volume(self) -> Volume:
        """Computes the bytes that buckets send."""
        return Volume(self.exchange, self.codec, self.compressor, self.always_sparse)

    @property
    def meaning(self) -> dict[str, str]:
        """What the numbers are that memory and exchange keep of a bucket's elements."""
        memory = self.memory.meaning or type(self.memory).__name__
        return {'memory': memory, 'transform': self.transform.basis}

    def state_for(self, spec: BucketSpec) -> dict[str, Entries]:
        """Return what each part keeps of a bucket between steps, by the part's role."""
        return {
            'memory': self.memory.state_for(spec),
            # A bucket that is never compressed goes through Dense and AllReduce.
            'compressor': self.compressor.state_for(spec) if spec.schedule is not None else {},
            'exchange': self.exchange.state_for(spec) if spec.schedule is not None else {},
            'transform': self.transform.state_for(spec),
            'codec': {'draws': Values()},
            **({} if self.control is None else {'control': self.control.state_for(spec)}),
        }

    def fingerprint(self, steps_per_epoch: int | None) -> dict[str, str]:
        """Return the settings that must be the same on all ranks, as text by aspect.

        Args:
            steps_per_epoch: The number of optimizer steps in an epoch of the warm-up.
        """
        parts = (
            self.codec, self.exchange, self.compressor, self.memory, self.transform, self.clipping,
            self.rules, self.nonfinite, self.always_sparse, self.control,
        )  # fmt: skip
        schedule = self.schedule
        by_epoch = schedule.warmup_epochs and schedule.stage_steps is None
        return {
            'the composition': ' '.join(map(describe, parts)),
            'the schedule of the density': repr(schedule),
            'steps_per_epoch, which the warm-up uses': str(steps_per_epoch) if by_epoch else '',
        }


def describe(part: object) -> str:
    """Return a part's type and plain settings, and those of the parts inside it, as text."""
    if part is None or isinstance(part, bool | int | float | str):
        return repr(part)
    if isinstance(part, Enum):
        return str(part)
    if isinstance(part, Mapping):
        return describe([[key, value] for key, value in part.items()])
    if isinstance(part, list | tuple):
        return f'[{", ".join(map(describe, part))}]'
    settings = [
        f'{name}={describe(value)}'
        for name, value in getattr(part, '__dict__', {}).items()
        if not name.startswith('_')
    ]
    return f'{type(part).__name__}({", ".join(settings)})'


def loses_without_feedback(codec: Codec) -> bool:
    """Return whether a codec's quantization error accumulates where no memory feeds it back."""
    return isinstance(codec.error, Contraction) and codec.error.delta < 1


def check_feedback(codec: Codec, memory: Memory) -> None:
    """Raise ValueError for error feedback of an unbiased coding, whose error would grow."""
    if isinstance(codec.error, Unbiased) and memory.feeds_back:
        raise ValueError(
            f'values={codec.values!r} is unbiased, with an error larger than '
            f'{type(memory).__name__} can feed back: use NoMemory, or a coding that is a '
            'contraction'
        )
