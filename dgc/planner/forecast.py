"""Predicted times of a division into buckets, from measured costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.compressors import Compressor, TopK
from dgc.costmodel import Line
from dgc.exchanges import Exchange
from dgc.timeline import Passage, end
from dgc.volume import Volume

FREE = Line(0.0, 0.0)


@dataclass(frozen=True)
class Route:
    """Measured costs of a compressed bucket, or of an uncompressed one.

    Attributes:
        compress: Processor seconds by elements.
        exchange: Seconds in the engine by bytes that a rank sends.
        error: Relative error of both lines (root mean square); the larger.
        moving: The part of ``exchange`` in which the processor works, and does not wait.
    """

    compress: Line
    exchange: Line
    error: float = 0.0
    moving: Line = FREE


@dataclass(frozen=True)
class Costs:
    """Measured costs of a composition.

    Attributes:
        workers: The number of ranks.
        sparse: Of compressed buckets; None where no message was smaller than an uncompressed one.
        dense: Of uncompressed buckets.
        copy: Seconds by elements, for parameters that share an uncompressed bucket. Compressed
            buckets copy them too where no kernel reads pieces; that is not included.
    """

    workers: int
    sparse: Route | None
    dense: Route
    copy: Line


@dataclass(frozen=True)
class Timing:
    """Measured times of a run; ``arrivals`` and ``backward`` as in ``dgc.profile.Profile``."""

    arrivals: Mapping[str, float]
    backward: float
    costs: Costs

    def to_json(self) -> dict[str, Any]:
        """Return it as numbers, lists and dictionaries."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Timing:
        """Read what ``to_json`` returned; KeyError, TypeError or ValueError for anything else."""
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
        )


def route(found: Mapping[str, Any]) -> Route:
    """Read one route of ``Costs``."""
    compress, exchange = Line(*found['compress']), Line(*found['exchange'])
    moving = Line(*found.get('moving', FREE))  # absent in older plans
    return Route(compress, exchange, float(found['error']), moving)


@dataclass(frozen=True)
class Forecast:
    """A run's timing, with the parts that decide how many bytes a bucket sends."""

    timing: Timing
    exchange: Exchange
    codec: Codec
    compressor: Compressor = field(default_factory=TopK)

    def ready(self, name: str) -> float:
        """Return when a parameter's gradient is complete, in seconds after the step's begin; an
        unused parameter is sent at the end."""
        return self.timing.arrivals.get(name, self.timing.backward)

    def passage(self, bucket: BucketSpec) -> Passage:
        """Return the predicted times of a bucket, after its warm-up."""
        costs, numel = self.timing.costs, bucket.numel
        volume, route = Volume(self.exchange, self.codec, self.compressor), costs.dense
        if costs.sparse is not None and volume.compresses(bucket, bucket.density, costs.workers):
            route = costs.sparse
        density = None if route is costs.dense else bucket.density
        sent = volume.bytes_sent(bucket, density, costs.workers)
        copied = route is costs.dense and len(bucket.members) > 1
        return Passage(
            max(map(self.ready, bucket.names)),
            route.compress.at(numel) + copied * costs.copy.at(numel),
            route.moving.at(sent),
            route.exchange.at(sent),
        )

    def seconds(self, buckets: Sequence[BucketSpec]) -> float:
        """Return the predicted seconds of a step, without the optimizer."""
        return end([self.passage(bucket) for bucket in buckets], self.timing.backward)
