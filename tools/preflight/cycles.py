"""Which HOROVOD_CYCLE_TIME to train with: the delay of a collective, and the cost of polling.

Horovod's ranks agree every cycle on what to reduce next, also where there is nothing to reduce. A
short cycle takes processor time and sends control messages all the time; a long one delays each
collective, since one waits for the next cycle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dgc import Engine
from tools.harness.machine import bytes_sent
from tools.harness.tables import align
from tools.preflight.measure import ROUNDS, SMALL, gather, warm_up

SETTING = 'HOROVOD_CYCLE_TIME'
DEFAULT = 1.0  # ms, Horovod's own
CYCLES = (DEFAULT, 2.0, 5.0, 10.0, 20.0)  # ms
IDLE = 1.0  # seconds for which polling is measured
STEP, COLLECTIVES = 200.0, 4  # ms of a step without exchange, and its negotiations
WORTH = 0.01  # of a step, which another cycle time must save


@dataclass(frozen=True)
class Cycle:
    """What a cycle time costs.

    milliseconds: the setting.
    latency: seconds of a small all-gather, of the slowest rank.
    processor: processor seconds per second of a rank that waits for nothing, mean over the ranks.
    traffic: control bytes per second that a rank's host sends meanwhile, mean over the ranks. On
        one host, those of all ranks.
    """

    milliseconds: float
    latency: float
    processor: float
    traffic: float

    def overhead(self, step: float, collectives: int, sharing: float) -> float:
        """Milliseconds that it adds to a step.

        Args:
            step: ms of a step without exchange.
            collectives: negotiations of a step, one after another.
            sharing: ranks that share a core, of which polling takes its part.
        """
        return 1e3 * self.latency * collectives + step * self.processor * sharing


def measure(make: Callable[[], Engine], device: torch.device) -> list[Cycle]:
    """Measure all cycle times, each with an engine that ``make`` starts. A collective.

    The setting of this process is restored in the end.
    """
    before = os.environ.get(SETTING)
    found = []
    try:
        for milliseconds in CYCLES:
            os.environ[SETTING] = f'{milliseconds:g}'  # read when Horovod starts
            engine = make()
            found.append(cycle(engine, milliseconds, device))
            engine.close()
    finally:
        del os.environ[SETTING]
        if before is not None:
            os.environ[SETTING] = before
    return found


def cycle(engine: Engine, milliseconds: float, device: torch.device) -> Cycle:
    """Measure one cycle time. A collective."""
    warm_up(engine, device)
    latency = gather(engine, SMALL, ROUNDS, device).seconds
    engine.barrier()
    processor, sent, start = time.process_time(), sum(bytes_sent().values()), time.perf_counter()
    time.sleep(IDLE)
    seconds = time.perf_counter() - start
    rates = [
        (time.process_time() - processor) / seconds,
        (sum(bytes_sent().values()) - sent) / seconds,
    ]
    means = engine.all_reduce(torch.tensor(rates, device=device)) / engine.size
    return Cycle(milliseconds, latency, *means.tolist())


def recommended(cycles: Sequence[Cycle], step: float, collectives: int, sharing: float) -> Cycle:
    """The cycle time of the least overhead; the default, the first, unless another saves WORTH."""
    default, *_ = cycles
    best = min(cycles, key=lambda each: each.overhead(step, collectives, sharing))
    gain = default.overhead(step, collectives, sharing) - best.overhead(step, collectives, sharing)
    return best if gain >= WORTH * step else default


def report(cycles: Sequence[Cycle], step: float, collectives: int, sharing: float) -> str:
    """The measurements as a table, and the recommended setting."""
    heads = ['cycle', 'small all-gather', 'polling', 'control traffic', 'adds to a step']
    rows = [
        [
            f'{each.milliseconds:g} ms',
            f'{1e3 * each.latency:.2f} ms',
            f'{100 * each.processor:.1f} % of a core',
            f'{each.traffic / 1e3:.1f} kB/s',
            f'{each.overhead(step, collectives, sharing):.1f} ms',
        ]
        for each in cycles
    ]
    best = recommended(cycles, step, collectives, sharing)
    why = 'the default' if best is cycles[0] else f'the default is {DEFAULT:g}'
    advice = (
        f'recommended: {SETTING}={best.milliseconds:g} ({why}), for a step of {step:g} ms with '
        f'{collectives} collectives, and {sharing:g} ranks a core: set it before horovodrun'
    )
    return '\n'.join([*align([heads, *rows]), advice])
