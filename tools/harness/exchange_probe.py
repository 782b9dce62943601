"""One exchange by itself: a bucket of random gradients, exchanged and counted on one worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.nn import Parameter

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.compressors import TopK
from dgc.engines import Engine
from dgc.exchanges import AllReduce, Exchange
from dgc.schedule import RatioSchedule
from dgc.sparse import Sparse


class Step(NamedTuple):
    """One exchange, on one worker. messages: number of messages sent; sent: their bytes."""

    seconds: float
    messages: int
    sent: int


class ExchangeProbe:
    """One worker of one exchange, with its bucket and its random gradients.

    Args:
        exchange: to be measured.
        numel: elements of the bucket.
        k: elements that are sent.
        engine: of this worker.
        clock: seconds since any moment.
        codec: encodes the messages.

    Raises:
        ValueError: the exchange cannot serve as many workers; on all of them.
    """

    def __init__(
        self,
        exchange: Exchange,
        numel: int,
        k: int,
        engine: Engine,
        clock: Callable[[], float],
        codec: Codec,
    ) -> None:
        exchange.check(engine)
        self.exchange, self.engine, self.clock, self.codec = exchange, engine, clock, codec
        weight = Parameter(torch.empty(numel), requires_grad=False)
        self.bucket = Bucket([('weight', weight, {})], RatioSchedule(k / numel))
        self.bucket.ratio = (k - 0.5) / numel  # rounded up to k, whatever the product rounds to
        self._generator = torch.Generator().manual_seed(engine.rank)

    def step(self) -> Step:
        """Exchange a new gradient. The time of selection counts only where the exchange selects."""
        bucket, engine = self.bucket, self.engine
        bucket.gradient.normal_(generator=self._generator)
        engine.barrier()
        before, start = replace(engine.traffic), self.clock()
        self.exchange.prepare(bucket, engine, healthy=True)
        seconds = self.clock() - start
        message = self.select()
        engine.barrier()
        start = self.clock()
        self.exchange.sum(bucket, message, self.codec, engine)
        seconds += self.clock() - start
        after = engine.traffic
        return Step(seconds, after.messages - before.messages, after.sent - before.sent)

    def select(self) -> Sparse:
        """The input of the exchange: all elements if it takes them, else the largest ones."""
        gradient = self.bucket.gradient
        if isinstance(self.exchange, AllReduce):
            return Sparse(gradient, None, self.bucket.numel)
        if self.exchange.selects:  # in training this is the memory's own storage, which it keeps
            return Sparse(gradient.clone(), None, self.bucket.numel)
        return TopK().compress(gradient, self.bucket.ratio)
