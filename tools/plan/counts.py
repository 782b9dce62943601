"""Counting an exchange's messages on a small bucket: consecutive ones, and those of one worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dgc import Composition, simulate
from dgc.costmodel import Network
from dgc.engines import SimulatedEngine
from dgc.exchanges import AllReduce
from tools.harness.exchange_probe import ExchangeProbe, probe_spec
from tools.plan.compositions import Make, sizes, unfit
from tools.plan.meter import Counting
from tools.plan.predict import Counts, Growth

NUMEL, K = 4096, 256
DOUBLINGS = 4  # 2 to 16 workers, from which the counts of more workers are extrapolated
# One second per message and one nanosecond per byte: the virtual clock then shows both counts.
BYTE = 1e-9
NETWORK = Network(alpha=1.0, beta=BYTE)
STEPS = 2  # only the last counts: in the first, some exchanges find regions that they use again


def growth(make: Make, workers: Iterable[int]) -> Growth:
    """Count a composition's exchange with a few workers, and extrapolate to more.

    Numbers in ``workers`` that are no larger are counted, too.
    """
    exchange = make().exchange
    few = sizes(exchange, DOUBLINGS)
    requested = {size for size in workers if size < few[-1] and not unfit(exchange, size)}
    return Growth({size: count(make, size) for size in {*few, *requested}})


def count(make: Make, workers: int) -> Counts:
    """Count one exchange with a number of workers."""
    ranks = simulate(workers, lambda engine: exchange_once(make, engine), NETWORK)
    composition = make()
    exchange, codec, k = composition.exchange, composition.codec, elements_sent(composition)
    clock, sends, handled = map(max, zip(*ranks, strict=True))
    rounds = int(clock)
    longest = (clock - rounds) / BYTE
    share = 1.0
    if not isinstance(exchange, AllReduce):
        share = longest / exchange.bytes_sent(probe_spec(NUMEL, k), k, codec, workers)
    return Counts(rounds, share, handled, sends)


def elements_sent(composition: Composition) -> int:
    """How many elements are sent: K, or all if the composition selects none."""
    return NUMEL if composition.schedule.density in (None, 1.0) else K


def exchange_once(make: Make, engine: SimulatedEngine) -> tuple[float, int, int]:
    """One worker's virtual seconds, messages sent, and messages encoded or decoded."""
    composition = make()
    codec, k = Counting(composition.codec), elements_sent(composition)
    composition = replace(composition, codec=codec)
    probe = ExchangeProbe(composition, NUMEL, k, engine, lambda: engine.clock)
    for _ in range(STEPS):
        codec.handled = 0
        step = probe.step()
    return step.seconds, step.messages, codec.handled
