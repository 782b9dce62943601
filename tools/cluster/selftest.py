"""Whether the links hold what they promise: also after a silence, when their buckets are full.

Every node sends to the next in a ring, so that each link is tried in both directions, but no node
sends while it receives: acknowledgements that wait behind data would cost some of the rate.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.cluster.core import Cluster
from tools.cluster.network import ClusterError
from tools.cluster.rates import burst, format_rate
from tools.cluster.workers import enter

PROBE = Path(__file__).with_name('probe.py')
MESSAGE = 200_000  # bytes
SILENCE = 1.0  # seconds before the message
BULK_SECONDS = 0.7
LEAST_BULK = 320_000  # bytes
UNLIMITED_BULK = 100_000_000  # bytes, where there is no rate to take it from
PAYLOAD = 1448 / 1514  # of a full Ethernet frame, as the limits count it, the rest is headers
TOLERANCE = 0.15
LATE = 0.03  # seconds that a busy machine may come late
LATEST, MARGIN = 1.2, 0.2  # when the next may send: so many times the ideal, and seconds more


class Link(NamedTuple):
    """What one way through the switch did.

    rate: bit/s, the lower one of the two links; message: bytes; seconds: that it took after the
    silence; bulk: bit/s of payload.
    """

    sender: int
    receiver: int
    rate: float
    message: int
    seconds: float
    bulk: float

    @property
    def ideal(self) -> float:
        """Seconds of the message at the rate, headers included."""
        return 8 * self.message / (self.rate * PAYLOAD)

    @property
    def least(self) -> float:
        """Seconds that the message must have taken, less what the bucket lets through at once."""
        return max(self.ideal - 8 * burst(self.rate) / self.rate, 0.0) if self.limited else 0.0

    @property
    def limited(self) -> bool:
        """Whether there is a rate to hold."""
        return math.isfinite(self.rate)

    @property
    def verdict(self) -> str:
        """'ok', 'too fast', 'too slow', or 'no limit'."""
        if not self.limited:
            return 'no limit'
        # Without a bulk its rate is not a number, and no comparison with it is true.
        if self.seconds < self.least * (1 - TOLERANCE) or self.bulk > self.rate * (1 + TOLERANCE):
            return 'too fast'
        slow = self.seconds > self.ideal * (1 + TOLERANCE) + LATE
        return 'too slow' if slow or self.bulk < self.rate * (1 - TOLERANCE) else 'ok'


def message_size(rate: float) -> int:
    """Bytes to send after the silence: enough that the burst is a small part, in a few seconds."""
    if math.isinf(rate):
        return MESSAGE
    return max(min(MESSAGE, round(rate / 8 * 2)), 4 * burst(rate))


def bulk_size(rate: float) -> int:
    """Bytes of the bulk."""
    return (
        max(round(rate / 8 * BULK_SECONDS), LEAST_BULK) if math.isfinite(rate) else UNLIMITED_BULK
    )


def measure(cluster: Cluster, bulk: bool = True) -> list[Link]:
    """Try every node's link; nothing else may run on the cluster.

    Takes about five seconds, two without the bulk, longer below 10 Mbit/s. A single node has nobody
    to send to. Raises ClusterError where it cannot be carried out.
    """
    nodes = len(cluster.names)
    if nodes == 1:
        return []
    ways = [(node, (node + 1) % nodes) for node in range(nodes)]
    rates = [min(cluster.rates[sender], cluster.rates[receiver]) for sender, receiver in ways]
    sizes = [(message_size(rate), bulk_size(rate) if bulk else 0) for rate in rates]
    probes = [start(cluster, node, successor, sizes) for node, successor in ways]
    try:
        lines = conduct(probes, delays(rates, sizes))
    finally:
        for probe in probes:
            probe.kill()
            probe.communicate()
    return [
        Link(
            sender,
            receiver,
            rate,
            message,
            seconds=lines[receiver][2] - lines[sender][0],
            bulk=bulk_rate(rate, its_bulk, lines[receiver][3] - lines[sender][1]),
        )
        for (sender, receiver), rate, (message, its_bulk) in zip(ways, rates, sizes, strict=True)
    ]


def bulk_rate(rate: float, sent: int, seconds: float) -> float:
    """Bits of payload a second, without those that the full bucket let through at once."""
    at_once = burst(rate) * PAYLOAD if math.isfinite(rate) else 0.0
    return 8 * (sent - at_once) / seconds if sent else math.nan


def delays(rates: Sequence[float], sizes: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """When each node sends its message and its bulk, seconds from the first message.

    Every second node in turn; where their number is odd, the last one's neighbour would receive
    while it sends, so the last one is a turn of its own.
    """
    nodes = len(rates)
    turns = [2 if node == nodes - 1 and nodes % 2 else node % 2 for node in range(nodes)]
    pairs = list(zip(rates, sizes, strict=True))
    message = max(turn_seconds(rate, size) for rate, (size, _) in pairs)
    bulk = max(turn_seconds(rate, size) for rate, (_, size) in pairs)
    all_messages = (max(turns) + 1) * message
    return [(turn * message, all_messages + turn * bulk) for turn in turns]


def turn_seconds(rate: float, size: int) -> float:
    """How long ``size`` bytes may take before the next node sends."""
    return MARGIN + LATEST * 8 * size / (rate * PAYLOAD)


def start(
    cluster: Cluster, node: int, successor: int, sizes: Sequence[tuple[int, int]]
) -> subprocess.Popen[bytes]:
    """One node's probe."""
    words = [sys.executable, '-I', '-S', str(PROBE), cluster.addresses[successor]]
    words += [str(size) for size in (*sizes[node], *sizes[node - 1])]
    return enter(cluster.names[node], words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def conduct(
    probes: Sequence[subprocess.Popen[bytes]], delays: Sequence[tuple[float, float]]
) -> list[list[float]]:
    """Let all probes send, each at its own moments after the silence; returns what each says."""
    for probe in probes:
        line(probe)
    begin = time.monotonic() + SILENCE
    for probe, (message, bulk) in zip(probes, delays, strict=True):
        assert probe.stdin is not None
        probe.stdin.write(b'%f %f\n' % (begin + message, begin + bulk))
        probe.stdin.flush()
    return [[float(word) for word in line(probe).split()] for probe in probes]


def line(probe: subprocess.Popen[bytes]) -> str:
    """The next line that a probe says. Raises ClusterError where it has ended instead."""
    assert probe.stdout is not None
    text = probe.stdout.readline().decode()
    if not text:
        raise ClusterError('the self-test of the links could not be run, for the reason above')
    return text


def table(links: Sequence[Link]) -> str:
    """The links, one a line."""
    rows = [('link', 'rate', 'after silence', 'took', 'ideal', 'bulk', '')]
    rows += [
        (
            f'{link.sender} -> {link.receiver}',
            format_rate(link.rate),
            f'{link.message / 1e3:.0f} kB',
            f'{link.seconds * 1e3:.1f} ms',
            f'{link.least * 1e3:.1f} to {link.ideal * 1e3:.1f} ms' if link.limited else '',
            '' if math.isnan(link.bulk) else f'{link.bulk / 1e6:.1f} Mbit/s',
            link.verdict,
        )
        for link in links
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ['  '.join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return '\n'.join(lines)
