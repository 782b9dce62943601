"""What a planner by times knows of a run, and what it foresees of a division into buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors.base import keep
from dgc.costmodel import Line
from dgc.exchanges import Exchange
from dgc.exchanges.base import ring_bytes
from dgc.timeline import Passage, end

FREE = Line(0.0, 0.0)  # of what costs nothing


@dataclass(frozen=True)
class Route:
    """What the path of a bucket takes that is sparse, or of one that is dense.

    compress: processor seconds by its elements. exchange: seconds in the engine by the bytes that
    a worker sends. error: of both, relative, root of the mean square; the larger.
    moving: of the exchange, what the processor is at work and not waiting.
    """

    compress: Line
    exchange: Line
    error: float = 0.0
    moving: Line = FREE


@dataclass(frozen=True)
class Costs:
    """Of a composition among some workers.

    sparse: None where its messages were never shorter than dense ones.
    copy: seconds by elements, of parameters that share a dense bucket. That a sparse one copies
        them too where no kernel reads pieces is left out.
    """

    workers: int
    sparse: Route | None
    dense: Route
    copy: Line


@dataclass(frozen=True)
class Timing:
    """What was measured of a run. arrivals, backward: as :class:`dgc.profile.Profile` has them."""

    arrivals: Mapping[str, float]
    backward: float
    costs: Costs

    def to_json(self) -> dict[str, Any]:
        """As numbers, lists and dictionaries."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Timing:
        """What ``to_json`` gave. Raises KeyError, TypeError or ValueError for anything else."""
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
    """From its numbers."""
    compress, exchange = Line(*found['compress']), Line(*found['exchange'])
    moving = Line(*found.get('moving', FREE))  # which plans that were saved earlier do not have
    return Route(compress, exchange, float(found['error']), moving)


@dataclass(frozen=True)
class Forecast:
    """A run's timing, with what decides how many bytes a bucket sends."""

    timing: Timing
    exchange: Exchange
    codec: Codec

    def ready(self, name: str) -> float:
        """When a parameter's gradient is there; one that takes no part is sent at the end."""
        return self.timing.arrivals.get(name, self.timing.backward)

    def passage(self, names: Sequence[str], numel: int, ratio: float | None) -> Passage:
        """A bucket's way. ratio: after the warm-up; None or from 1 on where it is dense."""
        costs = self.timing.costs
        its, sent = costs.dense, ring_bytes(numel, costs.workers)
        if ratio is not None and ratio < 1 and costs.sparse is not None:
            k = keep(numel, ratio)
            if self.exchange.pays(numel, k, self.codec, max(costs.workers, 2)):
                its = costs.sparse
                sent = self.exchange.bytes_sent(numel, k, self.codec, costs.workers)
        copied = its is costs.dense and len(names) > 1
        return Passage(
            max(map(self.ready, names)),
            its.compress.at(numel) + copied * costs.copy.at(numel),
            its.moving.at(sent),
            its.exchange.at(sent),
        )

    def passages(self, buckets: Sequence[Bucket]) -> list[Passage]:
        """Of each bucket."""
        return [
            self.passage(
                [member.name for member in bucket.members],
                bucket.numel,
                None if bucket.schedule is None else bucket.schedule.ratio,
            )
            for bucket in buckets
        ]

    def seconds(self, buckets: Sequence[Bucket]) -> float:
        """Of a step, without the optimizer."""
        return end(self.passages(buckets), self.timing.backward)
