"""What was measured, as a table, and what it means. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence

from tools.preflight.host import Host
from tools.preflight.measure import Gather, Measured, Way

SLOW = 0.5  # of the quickest way between hosts
EXAMPLE = 25_000_000  # elements: about ResNet-50
KEPT = 0.001


def mismatches(hosts: Sequence[Host]) -> list[str]:
    """Where a rank's versions differ from rank 0's, one sentence each."""
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
    """Seconds a message and seconds a byte, such that an all-gather of m bytes from each of
    ``size`` ranks takes (size − 1)(alpha + m·beta)."""
    steps = size - 1
    beta = max(large.seconds - small.seconds, 0.0) / (steps * max(large.size - small.size, 1))
    return max(small.seconds / steps - small.size * beta, 0.0), beta


def slow_ways(ways: Sequence[Way]) -> list[Way]:
    """Those with surely less than half the rate of the quickest."""
    quickest = max((way.least_rate for way in ways), default=0.0)
    return [way for way in ways if way.rate < SLOW * quickest]


def slow_hosts(ways: Sequence[Way]) -> list[int]:
    """Ranks whose every way, in and out, is slow. Between two hosts nobody can tell whose fault a
    slow way is."""
    slow = slow_ways(ways)
    ranks = sorted({rank for way in ways for rank in (way.sender, way.receiver)})
    if len(ranks) < 3:
        return []
    return [
        rank for rank in ranks if all(w in slow for w in ways if rank in (w.sender, w.receiver))
    ]


def warnings(hosts: Sequence[Host], measured: Measured) -> list[str]:
    """What should be looked at before training, each with its remedy."""
    names = {host.rank: host.name for host in hosts}
    culprits = slow_hosts(measured.ways)
    found = [
        f'rank {rank} on {names[rank]} is much slower than the others: everybody will wait for it; '
        'look at its cable, its link speed (ethtool) and who else uses it'
        for rank in culprits
    ]
    found += [
        f'the way from rank {way.sender} on {names[way.sender]} to rank {way.receiver} on '
        f'{names[way.receiver]} is much slower than the others'
        for way in slow_ways(measured.ways)
        if way.sender not in culprits and way.receiver not in culprits
    ]
    if len(leaders(hosts)) > 1:
        found += [
            f'rank {host.rank} on {host.name} sends over the loopback {interface}, though there '
            'are other hosts: name the interface, see docs/multi-host.md'
            for host, interface in zip(hosts, measured.interfaces, strict=True)
            if interface.startswith('lo ') and host.local_size == 1
        ]
    crowded = [host for host in hosts if host.busy_waiting and host.cores < 2 * host.local_size]
    if crowded:
        found.append(
            f'OpenMPI spins while it waits, and {crowded[0].name} has {crowded[0].cores} cores for '
            f'{crowded[0].local_size} ranks: add `-mca mpi_yield_when_idle 1`, '
            'or start with horovodrun --gloo'
        )
    return found


def report(hosts: Sequence[Host], measured: Measured, engine: str, launcher: str) -> str:
    """The table and what it means, for people."""
    lines = [
        f'{len(hosts)} ranks on {len(leaders(hosts))} host(s) under {launcher}, engine {engine}',
        f'the same everywhere: {versions_line(hosts)}',
        '',
        *table(hosts, measured),
        '',
        *meaning(measured, len(hosts)),
    ]
    found = warnings(hosts, measured)
    lines += [f'warning: {text}' for text in found] or ['nothing to warn of']
    return '\n'.join(lines)


def versions_line(hosts: Sequence[Host]) -> str:
    """Rank 0's."""
    return ', '.join(f'{name} {number}' for name, number in hosts[0].versions.items())


def table(hosts: Sequence[Host], measured: Measured) -> list[str]:
    """A line a rank; ways between hosts stand with their first rank."""
    out = {way.sender: way for way in measured.ways}
    into = {way.receiver: way for way in measured.ways}
    rows = [['rank', 'host', 'interface', 'to', 'round trip', 'sends', 'receives']]
    for host, interface in zip(hosts, measured.interfaces, strict=True):
        row = [str(host.rank), host.name, interface or 'not seen']
        if host.rank in out:
            way = out[host.rank]
            row += [f'rank {way.receiver}', f'{way.round_trip * 1e3:.2f} ms']
            row += [rate_of(way), rate_of(into[host.rank])]
        rows.append(row + [''] * (len(rows[0]) - len(row)))
    if not measured.ways:
        rows = [row[:3] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ['  '.join(map(str.ljust, row, widths)).rstrip() for row in rows]


def rate_of(way: Way) -> str:
    """Its rate, or what it is at least, where latency hides it."""
    clear = way.seconds > 2 * way.round_trip
    return mbits(way.rate) if clear else f'over {mbits(way.least_rate)}'


def mbits(rate: float) -> str:
    """Of bit/s."""
    return f'{rate / 1e6:,.1f} Mbit/s'


def meaning(measured: Measured, size: int) -> list[str]:
    """The model that fits the all-gathers, and what it says of an example."""
    small, large = measured.small, measured.large
    alpha, beta = alpha_beta(small, large, size)
    kept = round(EXAMPLE * KEPT)
    dense = 2 * (size - 1) * (alpha + 4 * EXAMPLE / size * beta)
    sparse = (size - 1) * (alpha + 8 * kept * beta)
    return [
        f'all-gather of {small.size} bytes a rank: {small.seconds * 1e3:.2f} ms, '
        f'of {large.size / 1e6:.2f} MB: {large.seconds * 1e3:.1f} ms',
        f'estimated alpha {alpha * 1e3:.3f} ms a message, beta {beta * 1e9:.2f} ns a byte '
        f'({mbits(8 / beta) if beta else "no limit seen"})',
        f'so a gradient of {EXAMPLE:,} elements costs about {dense:.3g} s a step dense, '
        f'and {sparse:.3g} s with one in {1 / KEPT:,.0f} gathered (compression itself not counted)',
    ]
