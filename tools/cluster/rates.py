"""Rates of links: parsing and formatting them, and the burst of each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

UNITS = {'bit': 1.0, 'kbit': 1e3, 'mbit': 1e6, 'gbit': 1e9}
SLOWEST = 8e3  # bit/s: at less, one packet takes more than a second
SMALLEST_BURST = 16_000  # bytes
BURST_SECONDS = 0.002


def parse_rate(text: str) -> float:
    """Parse a rate such as ``'1gbit'`` or ``'2.5mbit'`` to bit/s; ``'none'`` is infinite.

    Raises:
        ValueError: for other text, and for rates below 8 kbit/s.
    """
    if text == 'none':
        return math.inf
    match = re.fullmatch(r'(\d+(?:\.\d+)?)([a-z]*)', text.strip().lower())
    if match is None or match[2] not in UNITS:
        raise ValueError(
            f'{text!r} is not a rate: write a number and one of {", ".join(UNITS)}, '
            'such as 100mbit, or none for no limit'
        )
    rate = float(match[1]) * UNITS[match[2]]
    if rate < SLOWEST:
        raise ValueError(f'a rate of {text!r} is too low to emulate: at least 8kbit')
    return rate


def format_rate(rate: float) -> str:
    """Format a rate in bit/s so that :func:`parse_rate` reads it."""
    if math.isinf(rate):
        return 'none'
    unit = next(u for u in reversed(UNITS) if rate >= UNITS[u])
    return f'{rate / UNITS[unit]:g}{unit}'


def burst(rate: float) -> int:
    """Bytes that an idle link transmits at once: 2 ms at its rate, but at least 16 kB.

    A larger burst would falsify each message after a pause: with a token bucket of 256 kB, 200 kB
    pass a link of 10 Mbit/s in 1 ms instead of 160 ms. A burst smaller than the kernel's largest
    packets, or than what a fast link sends in a timer tick, would lower the rate.
    """
    return max(SMALLEST_BURST, round(rate / 8 * BURST_SECONDS))


def link_rates(nodes: int, rate: str, slow: Mapping[int, str]) -> list[float]:
    """Rates of all links in bit/s.

    Args:
        nodes: number of nodes.
        rate: of links that are not in ``slow``.
        slow: rates by number of the node.

    Raises:
        ValueError: an invalid rate, or a node that does not exist.
    """
    rates = [parse_rate(rate)] * nodes
    for node, its_rate in slow.items():
        if not 0 <= node < nodes:
            raise ValueError(f'there is no node {node}: {nodes} are numbered from 0')
        rates[node] = parse_rate(its_rate)
    return rates
