"""Measuring whether the links hold their rates, also when they were idle and may send a burst.

Every node sends to the next one in a ring, so that each link is used in both directions. No node
sends while it receives: acknowledgements that wait behind data would lower the rate.
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
from tools.harness.tables import align

PROBE = Path(__file__).with_name('probe.py')
MESSAGE = 200_000  # bytes
SILENCE = 1.0  # seconds without traffic before the message
BULK_SECONDS = 0.7
LEAST_BULK = 320_000  # bytes
UNLIMITED_BULK = 100_000_000  # bytes, on links without a limit
PAYLOAD = 1448 / 1514  # payload over size of a full Ethernet frame, as the limits count it
TOLERANCE = 0.15
LATE = 0.03  # seconds by which a busy machine may be late
LATEST, MARGIN = 1.2, 0.2  # the next turn begins after 1.2 times the ideal time, plus 0.2 s


class Link(NamedTuple):
    """The measurement from one node to the next through the switch.

    rate: of the slower one of the two links, bit/s.
    message: bytes; seconds: that it took after the silence.
    bulk: payload rate in bit/s; NaN if it was not measured.
    """

    sender: int
    receiver: int
    rate: float
    message: int
    seconds: float
    bulk: float

    @property
    def ideal(self) -> float:
        """Seconds that the message takes at the rate, with headers."""
        return 8 * self.message / (self.rate * PAYLOAD)

    @property
    def least(self) -> float:
        """Smallest plausible seconds of the message: without the burst, which is sent at once."""
        return max(self.ideal - 8 * burst(self.rate) / self.rate, 0.0) if self.limited else 0.0

    @property
    def limited(self) -> bool:
        """Whether the link has a limit."""
        return math.isfinite(self.rate)

    @property
    def verdict(self) -> str:
        """'ok', 'too fast', 'too slow', or 'no limit'."""
        if not self.limited:
            return 'no limit'
        # All comparisons with a bulk rate of NaN are false.
        if self.seconds < self.least * (1 - TOLERANCE) or self.bulk > self.rate * (1 + TOLERANCE):
            return 'too fast'
        slow = self.seconds > self.ideal * (1 + TOLERANCE) + LATE
        return 'too slow' if slow or self.bulk < self.rate * (1 - TOLERANCE) else 'ok'


def message_size(rate: float) -> int:
    """Bytes to send after the silence: much more than the burst, but for at most some seconds."""
    if math.isinf(rate):
        return MESSAGE
    return max(min(MESSAGE, round(rate / 8 * 2)), 4 * burst(rate))


def bulk_size(rate: float) -> int:
    """Bytes to send for the bulk rate."""
    return (
        max(round(rate / 8 * BULK_SECONDS), LEAST_BULK) if math.isfinite(rate) else UNLIMITED_BULK
    )


def measure(cluster: Cluster, bulk: bool = True) -> list[Link]:
    """Measure every node's link; nothing else may run on the cluster.

    It takes about five seconds, two without the bulk, and longer below 10 Mbit/s.

    Args:
        cluster: to measure; there is nothing to measure with a single node.
        bulk: whether to measure bulk rates, too.

    Raises:
        ClusterError: the measurement failed.
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
            bulk=bulk_rate(rate, bulk_bytes, lines[receiver][3] - lines[sender][1]),
        )
        for (sender, receiver), rate, (message, bulk_bytes) in zip(ways, rates, sizes, strict=True)
    ]


def bulk_rate(rate: float, sent: int, seconds: float) -> float:
    """Payload rate in bit/s, without the burst, which is sent at once. sent: bytes."""
    at_once = burst(rate) * PAYLOAD if math.isfinite(rate) else 0.0
    return 8 * (sent - at_once) / seconds if sent else math.nan


def delays(rates: Sequence[float], sizes: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """When each node sends its message and its bulk, in seconds after the first message.

    Even nodes send first, then odd ones. If the number of nodes is odd, the last node and the first
    are neighbours that would send in the same turn, so the last one has a turn of its own.
    """
    nodes = len(rates)
    turns = [2 if node == nodes - 1 and nodes % 2 else node % 2 for node in range(nodes)]
    pairs = list(zip(rates, sizes, strict=True))
    message = max(turn_seconds(rate, size) for rate, (size, _) in pairs)
    bulk = max(turn_seconds(rate, size) for rate, (_, size) in pairs)
    all_messages = (max(turns) + 1) * message
    return [(turn * message, all_messages + turn * bulk) for turn in turns]


def turn_seconds(rate: float, size: int) -> float:
    """Seconds after which the next node sends, when ``size`` bytes are sent at ``rate`` bit/s."""
    return MARGIN + LATEST * 8 * size / (rate * PAYLOAD)


def start(
    cluster: Cluster, node: int, successor: int, sizes: Sequence[tuple[int, int]]
) -> subprocess.Popen[bytes]:
    """Start the probe of one node. sizes: of message and bulk, by node."""
    words = [sys.executable, '-I', '-S', str(PROBE), cluster.addresses[successor]]
    words += [str(size) for size in (*sizes[node], *sizes[node - 1])]
    return enter(cluster.names[node], words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def conduct(
    probes: Sequence[subprocess.Popen[bytes]], delays: Sequence[tuple[float, float]]
) -> list[list[float]]:
    """Let all probes send after the silence, each after its delays; return the times they print."""
    for probe in probes:
        line(probe)
    begin = time.monotonic() + SILENCE
    for probe, (message, bulk) in zip(probes, delays, strict=True):
        assert probe.stdin is not None
        probe.stdin.write(b'%f %f\n' % (begin + message, begin + bulk))
        probe.stdin.flush()
    return [[float(word) for word in line(probe).split()] for probe in probes]


def line(probe: subprocess.Popen[bytes]) -> str:
    """The next line that a probe prints. Raises ClusterError if it has ended."""
    assert probe.stdout is not None
    text = probe.stdout.readline().decode()
    if not text:
        raise ClusterError('the self-test of the links could not be run, for the reason above')
    return text


def table(links: Sequence[Link]) -> str:
    """A table with one line per link."""
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
    return '\n'.join(align(rows))
