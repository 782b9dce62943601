"""Rates of links: how they are written, and the burst that goes with each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

UNITS = {'bit': 1.0, 'kbit': 1e3, 'mbit': 1e6, 'gbit': 1e9}
SLOWEST = 8e3  # bit/s: at less, one packet takes more than a second
SMALLEST_BURST = 16_000  # bytes
BURST_SECONDS = 0.002


def parse_rate(text: str) -> float:
    """Bits per second of a rate such as ``'1gbit'`` or ``'2.5mbit'``; infinite for ``'none'``.

    Raises ValueError for anything else, rates below 8 kbit/s included.
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
    """What :func:`parse_rate` reads."""
    if math.isinf(rate):
        return 'none'
    unit = next(u for u in reversed(UNITS) if rate >= UNITS[u])
    return f'{rate / UNITS[unit]:g}{unit}'


def burst(rate: float) -> int:
    """Bytes that a link which was silent lets through at once: 2 ms of its rate, or 16 kB.

    More would falsify every message after a pause: a bucket of 256 kB lets 200 kB through a link of
    10 Mbit/s in a millisecond instead of 160. Less than the largest packets of the kernel costs
    rate, and a timer tick of fast links must fit.
    """
    return max(SMALLEST_BURST, round(rate / 8 * BURST_SECONDS))


def link_rates(nodes: int, rate: str, slow: Mapping[int, str]) -> list[float]:
    """Bits per second of each node's link: ``rate``, but for the nodes named in ``slow``.

    Raises ValueError for a bad rate or a node that does not exist.
    """
    rates = [parse_rate(rate)] * nodes
    for node, its_rate in slow.items():
        if not 0 <= node < nodes:
            raise ValueError(f'there is no node {node}: {nodes} are numbered from 0')
        rates[node] = parse_rate(its_rate)
    return rates
