"""Evaluating the measurements: tables, warnings and estimates. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence

from tools.harness.tables import align
from tools.preflight.host import Host
from tools.preflight.measure import Gather, Measured, Way

SLOW = 0.5  # a path is slow below this fraction of the rate of the fastest path
EXAMPLE = 25_000_000  # elements: about ResNet-50
DENSITY = 0.001


def mismatches(hosts: Sequence[Host]) -> list[str]:
    """The differences of versions from those of rank 0, one sentence each."""
    first = hosts[0].versions
    return [
        f'rank {host.rank} on {host.name} has {name} {host.versions.get(name)}, '
        f'rank 0 on {hosts[0].name} has {first[name]}'
        for host in hosts[1:]
        for name in first
        if host.versions.get(name) != first[name]
    ]


def leaders(hosts: Sequence[Host]) -> list[int]:
    """The first rank of every host."""
    return [host.rank for host in hosts if host.local_rank == 0]


def alpha_beta(small: Gather, large: Gather, size: int) -> tuple[float, float]:
    """Fit alpha, in seconds per message, and beta, in seconds per byte, to two all-gathers.

    An all-gather of m bytes from each of P ranks takes (P − 1)(alpha + m·beta). size: P.
    """
    steps = size - 1
    beta = max(large.seconds - small.seconds, 0.0) / (steps * max(large.size - small.size, 1))
    return max(small.seconds / steps - small.size * beta, 0.0), beta


def slow_ways(ways: Sequence[Way]) -> list[Way]:
    """The paths that certainly have less than half the rate of the fastest."""
    fastest = max((way.least_rate for way in ways), default=0.0)
    return [way for way in ways if way.rate < SLOW * fastest]


def slow_hosts(ways: Sequence[Way]) -> list[int]:
    """The ranks all of whose paths, in and out, are slow.

    With only two hosts, a slow path cannot be attributed to one of them.
    """
    slow = slow_ways(ways)
    ranks = sorted({rank for way in ways for rank in (way.sender, way.receiver)})
    if len(ranks) < 3:
        return []
    return [
        rank for rank in ranks if all(w in slow for w in ways if rank in (w.sender, w.receiver))
    ]


def warnings(hosts: Sequence[Host], measured: Measured) -> list[str]:
    """Problems to solve before training, each with a remedy."""
    names = {host.rank: host.name for host in hosts}
    slow = slow_hosts(measured.ways)
    found = [
        f'rank {rank} on {names[rank]} is much slower than the others, and all ranks will wait for '
        'it: check its cable, its link speed (ethtool) and other traffic'
        for rank in slow
    ]
    found += [
        f'the path from rank {way.sender} on {names[way.sender]} to rank {way.receiver} on '
        f'{names[way.receiver]} is much slower than the others'
        for way in slow_ways(measured.ways)
        if way.sender not in slow and way.receiver not in slow
    ]
    if len(leaders(hosts)) > 1:
        found += [
            f'rank {host.rank} on {host.name} sends over the loopback {interface}, though there '
            'are other hosts: set the interface, see docs/multi-host.md'
            for host, interface in zip(hosts, measured.interfaces, strict=True)
            if interface.startswith('lo ') and host.local_size == 1
        ]
    crowded = [host for host in hosts if host.busy_waiting and host.cores < 2 * host.local_size]
    if crowded:
        found.append(
            f'OpenMPI uses a core while it waits, and {crowded[0].name} has {crowded[0].cores} '
            f'cores for {crowded[0].local_size} ranks: add `-mca mpi_yield_when_idle 1`, '
            'or start with horovodrun --gloo'
        )
    return found


def report(hosts: Sequence[Host], measured: Measured, engine: str, launcher: str) -> str:
    """The whole report for people."""
    lines = [
        f'{len(hosts)} ranks on {len(leaders(hosts))} host(s) under {launcher}, engine {engine}',
        f'the same everywhere: {versions_line(hosts)}',
        '',
        *table(hosts, measured),
        '',
        *meaning(measured, len(hosts)),
    ]
    found = warnings(hosts, measured)
    lines += [f'warning: {text}' for text in found] or ['no warnings']
    return '\n'.join(lines)


def versions_line(hosts: Sequence[Host]) -> str:
    """The versions of rank 0, in one line."""
    return ', '.join(f'{name} {number}' for name, number in hosts[0].versions.items())


def table(hosts: Sequence[Host], measured: Measured) -> list[str]:
    """One line per rank; the paths between hosts are in the lines of their leaders."""
    out = {way.sender: way for way in measured.ways}
    into = {way.receiver: way for way in measured.ways}
    rows = [['rank', 'host', 'interface', 'to', 'round trip', 'sends', 'receives']]
    for host, interface in zip(hosts, measured.interfaces, strict=True):
        row = [str(host.rank), host.name, interface or 'unknown']
        if host.rank in out:
            way = out[host.rank]
            row += [f'rank {way.receiver}', f'{way.round_trip * 1e3:.2f} ms']
            row += [rate_of(way), rate_of(into[host.rank])]
        rows.append(row + [''] * (len(rows[0]) - len(row)))
    if not measured.ways:
        rows = [row[:3] for row in rows]
    return align(rows)


def rate_of(way: Way) -> str:
    """The rate of a path, or its lower bound if the latency is too large to measure it."""
    measurable = way.seconds > 2 * way.round_trip
    return mbits(way.rate) if measurable else f'over {mbits(way.least_rate)}'


def mbits(rate: float) -> str:
    """Format a rate given in bit/s."""
    return f'{rate / 1e6:,.1f} Mbit/s'


def meaning(measured: Measured, size: int) -> list[str]:
    """The network model of the all-gathers, and its prediction for an example. size: ranks."""
    small, large = measured.small, measured.large
    alpha, beta = alpha_beta(small, large, size)
    sent = round(EXAMPLE * DENSITY)
    dense = 2 * (size - 1) * (alpha + 4 * EXAMPLE / size * beta)
    sparse = (size - 1) * (alpha + 8 * sent * beta)
    return [
        f'all-gather of {small.size} bytes per rank: {small.seconds * 1e3:.2f} ms, '
        f'of {large.size / 1e6:.2f} MB: {large.seconds * 1e3:.1f} ms',
        f'estimated alpha {alpha * 1e3:.3f} ms per message, beta {beta * 1e9:.2f} ns per byte '
        f'({mbits(8 / beta) if beta else "no limit measured"})',
        f'estimated exchange of {EXAMPLE:,} elements: {dense:.3g} s per step dense, {sparse:.3g} s '
        f'at a density of {DENSITY:.1%} by all-gather, without compression and decompression',
    ]
