"""Measuring the network through the engine that will train. All functions are collectives."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dgc import Engine
from dgc.handshake import gather_text
from tools.harness.machine import bytes_sent
from tools.preflight import host

SMALL = 64  # bytes of a message whose time is only latency
FIRST, LAST, GROWTH = 128_000, 32_000_000, 4  # bytes of large messages, up to those of LONG time
LONG = 0.15  # seconds
ROUNDS = 10  # measurements of small messages, of which the median counts
TRIES = 2  # measurements of large messages, of which the faster counts


@dataclass(frozen=True)
class Way:
    """The path from one rank to another.

    round_trip: seconds of a small message to the receiver and one back.
    size, seconds: bytes of a large message, and seconds of it and of a small one back.
    """

    sender: int
    receiver: int
    round_trip: float
    size: int
    seconds: float

    @property
    def rate(self) -> float:
        """Rate in bit/s, from the time that the large message takes longer than the small one.

        It is too high if the latency varies by an amount that is not small compared to ``seconds``.
        """
        return 8 * self.size / max(self.seconds - self.round_trip, 1e-6)

    @property
    def least_rate(self) -> float:
        """Lower bound of the rate in bit/s."""
        return 8 * self.size / self.seconds


@dataclass(frozen=True)
class Gather:
    """An all-gather of ``size`` bytes from every rank."""

    size: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """All measurements.

    ways: between hosts, in a ring.
    small, large: all-gathers among all ranks.
    interfaces: by rank, the one that sent the large all-gather, with its address; '' if unknown.
    """

    ways: list[Way]
    small: Gather
    large: Gather
    interfaces: list[str]


def measure(engine: Engine, leaders: Sequence[int], device: torch.device) -> Measured:
    """Measure among all ranks, and between hosts. leaders: one rank of each host."""
    warm_up(engine, device)
    small = gather(engine, SMALL, ROUNDS, device)
    before, sent = bytes_sent(), 0
    for size in sizes():
        large = gather(engine, size, 1, device)
        sent += size * (engine.size - 1)
        if large.seconds > LONG:
            break
    busiest = host.busiest(before, bytes_sent(), sent)
    interfaces = gather_text(engine, busiest, device, limit=64)
    after = [*leaders[1:], *leaders[:1]] if len(leaders) > 1 else []
    ways = [way(engine, *pair, device) for pair in zip(leaders, after, strict=False)]
    return Measured(ways, small, large, interfaces)


def sizes() -> list[int]:
    """Sizes of large messages in bytes, ascending."""
    return [min(FIRST * GROWTH**n, LAST) for n in range(5)]


def warm_up(engine: Engine, device: torch.device) -> None:
    """Let engines open connections, which some of them do with the first message."""
    for _ in range(2):
        engine.all_gather(torch.zeros(SMALL, dtype=torch.uint8, device=device))


def gather(engine: Engine, size: int, rounds: int, device: torch.device) -> Gather:
    """Measure all-gathers of ``size`` bytes per rank: median over rounds, of the slowest rank."""
    own = torch.zeros(size, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(rounds):
        engine.barrier()
        seconds.append(timed(lambda: engine.all_gather(own), device))
    return Gather(size, agreed(engine, statistics.median(seconds), device))


def way(engine: Engine, sender: int, receiver: int, device: torch.device) -> Way:
    """Measure the path from one rank to another, while all other ranks are idle."""
    small = [exchange(engine, sender, receiver, SMALL, device) for _ in range(ROUNDS)]
    round_trip = statistics.median(small)
    for size in sizes():
        seconds = min(exchange(engine, sender, receiver, size, device) for _ in range(TRIES))
        if seconds - round_trip > max(LONG, round_trip):
            break
    return Way(sender, receiver, round_trip, size, seconds)


def exchange(engine: Engine, sender: int, receiver: int, size: int, device: torch.device) -> float:
    """Send ``size`` bytes from one rank to another, and a small message back.

    Returns:
        The seconds on the sender's clock, on all ranks.
    """
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    back = there[:SMALL]

    def both() -> None:
        send(engine, sender, receiver, there)
        send(engine, receiver, sender, back)

    engine.barrier()
    seconds = timed(both, device)
    return agreed(engine, seconds if engine.rank == sender else 0.0, device)


def send(engine: Engine, sender: int, receiver: int, message: Tensor) -> None:
    """Send one message; a collective in which every rank takes part."""
    engine.send_recv(
        message,
        receiver if engine.rank == sender else None,
        sender if engine.rank == receiver else None,
    )


def timed(job: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, including the work that it queues on the GPU."""
    start = time.perf_counter()
    job()
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def agreed(engine: Engine, seconds: float, device: torch.device) -> float:
    """The maximum of all ranks' seconds."""
    own = torch.tensor([seconds], dtype=torch.float64).view(torch.uint8).to(device)
    return float(engine.all_gather(own).cpu().view(torch.float64).max())
