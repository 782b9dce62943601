"""How many messages an exchange takes, one after another and in all: counted, on a small bucket."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import Parameter

from dgc import simulate
from dgc.buckets import Bucket
from dgc.compressors import TopK
from dgc.costmodel import Network
from dgc.engines import SimulatedEngine
from dgc.exchanges import AllReduce
from dgc.schedule import RatioSchedule
from dgc.sparse import Sparse
from tools.plan.compositions import Make, sizes, unfit
from tools.plan.meter import Counting
from tools.plan.predict import Counts, Growth

NUMEL, K = 4096, 256
DOUBLINGS = 4  # 2 to 16 workers: what an exchange takes among more follows from how it grows there
# A second a message and a nanosecond a byte: a clock that shows both.
BYTE = 1e-9
NETWORK = Network(alpha=1.0, beta=BYTE)
STEPS = 2  # the last counts: in the first, some exchanges find out what they use again


def growth(make: Make, workers: Iterable[int]) -> Growth:
    """The counts of a composition's exchange among a few workers, and among those of ``workers``
    that are no more."""
    exchange = make().exchange
    few = sizes(exchange, DOUBLINGS)
    asked = {size for size in workers if size < few[-1] and not unfit(exchange, size)}
    return Growth({size: count(make, size) for size in {*few, *asked}})


def count(make: Make, workers: int) -> Counts:
    """Of one exchange among so many."""
    ranks = simulate(workers, lambda engine: exchange_once(make, engine), NETWORK)
    exchange, codec = make().exchange, make().codec
    clock, sends, handled = map(max, zip(*ranks, strict=True))
    rounds = int(clock)
    longest = (clock - rounds) / BYTE
    share = 1.0
    if not isinstance(exchange, AllReduce):
        share = longest / exchange.bytes_sent(NUMEL, K, codec, workers)
    return Counts(rounds, share, handled, sends)


def exchange_once(make: Make, engine: SimulatedEngine) -> tuple[float, int, int]:
    """One worker's seconds, on the virtual clock, and the messages that it sends and handles."""
    composition = make()
    codec, exchange = Counting(composition.codec), composition.exchange
    weight = Parameter(torch.empty(NUMEL), requires_grad=False)
    bucket = Bucket([('weight', weight, {})], RatioSchedule(K / NUMEL))
    bucket.ratio = K / NUMEL
    draw = torch.Generator().manual_seed(engine.rank)
    begin, before = 0.0, 0
    for _ in range(STEPS):
        bucket.gradient.normal_(generator=draw)
        message = TopK().compress(bucket.gradient, bucket.ratio)
        if exchange.selects or isinstance(exchange, AllReduce):
            message = Sparse(bucket.gradient.clone(), None, NUMEL)
        engine.barrier()  # so that all clocks are alike
        codec.handled, begin, before = 0, engine.clock, engine.traffic.messages
        exchange.sum(bucket, message, codec, engine)
    return engine.clock - begin, engine.traffic.messages - before, codec.handled
