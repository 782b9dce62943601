"""What the network does, measured through the engine that will train. All calls are collectives."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dgc import Engine
from dgc.handshake import gather_text
from tools.preflight import host

SMALL = 64  # bytes: a message whose time is all latency
FIRST, LAST, GROWTH = 128_000, 32_000_000, 4  # bytes of large messages: tried until they take long
LONG = 0.15  # seconds
ROUNDS = 10  # of small messages; the median counts
TRIES = 2  # of large ones; the quicker counts


@dataclass(frozen=True)
class Way:
    """From one rank to another.

    round_trip: seconds of a small message there and back. size, seconds: of a large one there and a
    small one back.
    """

    sender: int
    receiver: int
    round_trip: float
    size: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bit/s: what the large message took more than the small one. Latency that varies makes it
        too high where it is not small beside ``seconds``."""
        return 8 * self.size / max(self.seconds - self.round_trip, 1e-6)

    @property
    def least_rate(self) -> float:
        """Bit/s that there must be."""
        return 8 * self.size / self.seconds


@dataclass(frozen=True)
class Gather:
    """An all-gather in which every rank brings ``size`` bytes."""

    size: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """ways: between hosts, in a ring. small, large: all-gathers among all ranks. interfaces: by
    rank, the one that the bytes of the large one left through, with its address, or ''."""

    ways: list[Way]
    small: Gather
    large: Gather
    interfaces: list[str]


def measure(engine: Engine, leaders: Sequence[int], device: torch.device) -> Measured:
    """Everything, among all ranks and between ``leaders``, one rank of each host."""
    warm_up(engine, device)
    small = gather(engine, SMALL, ROUNDS, device)
    before, sent = host.sent_by_interface(), 0
    for size in sizes():
        large = gather(engine, size, 1, device)
        sent += size * (engine.size - 1)
        if large.seconds > LONG:
            break
    busiest = host.busiest(before, host.sent_by_interface(), sent)
    interfaces = gather_text(engine, busiest, device, limit=64)
    after = [*leaders[1:], *leaders[:1]] if len(leaders) > 1 else []
    ways = [way(engine, *pair, device) for pair in zip(leaders, after, strict=False)]
    return Measured(ways, small, large, interfaces)


def sizes() -> list[int]:
    """Of large messages, in bytes, smallest first."""
    return [min(FIRST * GROWTH**n, LAST) for n in range(5)]


def warm_up(engine: Engine, device: torch.device) -> None:
    """Open connections, which some engines do at the first message."""
    for _ in range(2):
        engine.all_gather(torch.zeros(SMALL, dtype=torch.uint8, device=device))


def gather(engine: Engine, size: int, rounds: int, device: torch.device) -> Gather:
    """The median of some all-gathers of ``size`` bytes from each rank, by the slowest rank."""
    ours = torch.zeros(size, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(rounds):
        engine.barrier()
        seconds.append(timed(lambda: engine.all_gather(ours), device))
    return Gather(size, agreed(engine, statistics.median(seconds), device))


def way(engine: Engine, sender: int, receiver: int, device: torch.device) -> Way:
    """What one rank can send to another; all others stand by."""
    small = [exchange(engine, sender, receiver, SMALL, device) for _ in range(ROUNDS)]
    round_trip = statistics.median(small)
    for size in sizes():
        seconds = min(exchange(engine, sender, receiver, size, device) for _ in range(TRIES))
        if seconds - round_trip > max(LONG, round_trip):
            break
    return Way(sender, receiver, round_trip, size, seconds)


def exchange(engine: Engine, sender: int, receiver: int, size: int, device: torch.device) -> float:
    """Seconds until ``size`` bytes have gone from one rank to the other and a few have come back,
    on the sender's clock; the same on all ranks."""
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    back = there[:SMALL]

    def both() -> None:
        send(engine, sender, receiver, there)
        send(engine, receiver, sender, back)

    engine.barrier()
    seconds = timed(both, device)
    return agreed(engine, seconds if engine.rank == sender else 0.0, device)


def send(engine: Engine, sender: int, receiver: int, message: Tensor) -> None:
    """One message, which every rank must take part in."""
    engine.send_recv(
        message,
        receiver if engine.rank == sender else None,
        sender if engine.rank == receiver else None,
    )


def timed(job: Callable[[], object], device: torch.device) -> float:
    """Seconds that a call takes, with what it leaves to the GPU."""
    start = time.perf_counter()
    job()
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def agreed(engine: Engine, seconds: float, device: torch.device) -> float:
    """The longest of all ranks' times."""
    ours = torch.tensor([seconds], dtype=torch.float64).view(torch.uint8).to(device)
    return float(engine.all_gather(ours).cpu().view(torch.float64).max())
