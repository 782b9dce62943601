"""One exchange by itself: a bucket of random gradients, exchanged and counted on one worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.nn import Parameter

from dgc import Composition
from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.calibration import near_square
from dgc.compressors import TopK
from dgc.engines import Engine
from dgc.exchanges import Context
from dgc.schedule import DensitySchedule
from dgc.sparse import Payload, Sparse


class Step(NamedTuple):
    """One exchange, on one worker. messages: number of messages sent; sent: their bytes."""

    seconds: float
    messages: int
    sent: int


class ExchangeProbe:
    """One worker of one exchange, with its bucket and its random gradients.

    Args:
        composition: whose exchange is measured, with its codec; no other part is used.
        numel: elements of the bucket.
        k: elements that are sent.
        engine: of this worker.
        clock: seconds since any moment.

    Raises:
        ValueError: the exchange cannot serve as many workers; on all of them.
    """

    def __init__(
        self,
        composition: Composition,
        numel: int,
        k: int,
        engine: Engine,
        clock: Callable[[], float],
    ) -> None:
        self.exchange, self.codec = composition.exchange, composition.codec
        self.exchange.check(engine)
        self.engine, self.clock = engine, clock
        spec = probe_spec(numel, k)
        weight = Parameter(torch.empty(spec.members[0].shape), requires_grad=False)
        parts = {**composition.state_for(spec), 'memory': {}}
        self.bucket = Bucket(spec, [(weight, {})], parts, engine.rank, engine.size)
        self.bucket.density = spec.density
        self.k = k
        self._generator = torch.Generator().manual_seed(engine.rank)

    def step(self) -> Step:
        """Exchange a new gradient. The time of selection counts only where the exchange selects."""
        bucket, engine = self.bucket, self.engine
        bucket.gradient.normal_(generator=self._generator)
        engine.barrier()
        before, start = replace(engine.traffic), self.clock()
        self.exchange.prepare(bucket, engine, is_finite=True)
        seconds = self.clock() - start
        message = self.select()
        engine.barrier()
        start = self.clock()
        self.exchange.reduce(message, Context(bucket, self.k, self.codec, engine))
        seconds += self.clock() - start
        after = engine.traffic
        return Step(seconds, after.messages - before.messages, after.sent - before.sent)

    def select(self) -> Sparse:
        """The input of the exchange: the k largest elements, or all if it takes no others."""
        gradient, density = self.bucket.gradient, self.bucket.density
        if Payload.SPARSE in self.exchange.accepts and self.codec.indices != 'none':
            assert density is not None
            return TopK().compress(gradient, density)
        if self.exchange.selects:  # in training this is the memory's own storage, which it keeps
            gradient = gradient.clone()
        return Sparse(gradient, None, self.bucket.numel)


def probe_spec(numel: int, k: int) -> BucketSpec:
    """A bucket of one matrix of ``numel`` elements, of which ``k`` are sent."""
    density = (k - 0.5) / numel  # rounded up to k, whatever the product rounds to
    return BucketSpec.of_shape(*near_square(numel), schedule=DensitySchedule(density))
