"""Predicts the times of buckets and of a step from measured costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.compressors import Compressor, TopK
from dgc.costmodel import Line
from dgc.exchanges import Exchange
from dgc.timeline import BucketTimes, end
from dgc.volume import Volume

FREE = Line(0.0, 0.0)


@dataclass(frozen=True)
class Route:
    """Measured costs of a compressed bucket, or of an uncompressed one.

    Attributes:
        compress: Processor seconds as a function of the number of elements.
        exchange: Seconds in the engine as a function of the bytes that a rank sends.
        error: Root mean square of the relative errors of a line; the larger of the two.
        moving: Processor seconds within ``exchange``, as a function of the bytes that a rank sends.
    """

    compress: Line
    exchange: Line
    error: float = 0.0
    moving: Line = FREE


@dataclass(frozen=True)
class Costs:
    """Measured costs of a composition.

    Attributes:
        workers: The world size.
        sparse: Costs of compressed buckets; None where no compressed message was smaller.
        dense: Costs of uncompressed buckets.
        copy: Seconds of copying gradients into an uncompressed bucket of several parameters, as a
            function of the number of elements. Compressed buckets need this copy too where no
            kernel reads gradients in pieces; that is not included.
    """

    workers: int
    sparse: Route | None
    dense: Route
    copy: Line

    @property
    def error(self) -> float:
        """The larger of the routes' errors."""
        return max(self.dense.error, 0.0 if self.sparse is None else self.sparse.error)


@dataclass(frozen=True)
class Timing:
    """Measured times of a run.

    Attributes:
        arrivals: Parameter name → when its gradient is complete, see ``dgc.profile.Profile``.
        backward: When the backward pass ends, see ``dgc.profile.Profile``.
        costs: Of the composition.
        pipelined: Whether a bucket is compressed while the one before it is sent.
    """

    arrivals: Mapping[str, float]
    backward: float
    costs: Costs
    pipelined: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return this as numbers, lists and dictionaries."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Timing:
        """Read what ``to_json`` returned.

        Raises:
            KeyError, TypeError, ValueError: For anything else.
        """
        costs = found['costs']
        return cls(
            {str(name): float(seconds) for name, seconds in found['arrivals'].items()},
            float(found['backward']),
            Costs(
                int(costs['workers']),
                None if costs['sparse'] is None else route(costs['sparse']),
                route(costs['dense']),
                Line(*costs['copy']),
            ),
            bool(found.get('pipelined', False)),  # absent in older plans
        )


def route(found: Mapping[str, Any]) -> Route:
    """Read a ``Route`` from its dictionary."""
    compress, exchange = Line(*found['compress']), Line(*found['exchange'])
    moving = Line(*found.get('moving', FREE))  # absent in older plans
    return Route(compress, exchange, float(found['error']), moving)


@dataclass(frozen=True)
class Forecast:
    """Predicts from a run's timing and the parts that decide how many bytes a bucket sends.

    Attributes:
        timing: What was measured.
        exchange, codec, compressor: Parts of the composition.
        always_sparse: See Composition.
    """

    timing: Timing
    exchange: Exchange
    codec: Codec
    compressor: Compressor = field(default_factory=TopK)
    always_sparse: bool = False

    def ready(self, name: str) -> float:
        """Return when a parameter's gradient is complete, in seconds from the start of the step.

        An unused parameter is sent when the backward pass has ended.
        """
        return self.timing.arrivals.get(name, self.timing.backward)

    def bucket_times(self, bucket: BucketSpec) -> BucketTimes:
        """Return the predicted times of a bucket at its density after the warm-up."""
        return self.times(bucket, max(map(self.ready, bucket.names)))

    def times(self, bucket: BucketSpec, ready: float) -> BucketTimes:
        """Return the predicted times of a bucket whose gradients are complete at ``ready``."""
        costs, numel = self.timing.costs, bucket.numel
        volume = Volume(self.exchange, self.codec, self.compressor, self.always_sparse)
        route, density = costs.dense, None  # uncompressed
        if costs.sparse is not None and volume.compresses(bucket, bucket.density, costs.workers):
            route, density = costs.sparse, bucket.density
        sent = volume.bytes_sent(bucket, density, costs.workers)
        copied = route is costs.dense and bucket.count > 1
        return BucketTimes(
            ready,
            route.compress.at(numel) + copied * costs.copy.at(numel),
            route.moving.at(sent),
            route.exchange.at(sent),
        )

    def seconds(self, buckets: Sequence[BucketSpec]) -> float:
        """Return the predicted seconds of a step, excluding the optimizer's update."""
        times = [self.bucket_times(bucket) for bucket in buckets]
        return end(times, self.timing.backward, self.timing.pipelined)
