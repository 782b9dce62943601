"""The rows that are compared: algorithms of ``dgc.algorithms``, and variants of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bench.parity.workloads import Settings
from tools.harness.algorithms import DENSE, table
from tools.harness.cli import check_name

PUBLISHED = (DENSE, 'dgc', 'gtopk', 'spardl', 'oktopk', 'omgs', 'dgs')
REPEATED = (DENSE, 'dgc')  # rows that are trained with --seeds seeds, the others with --other-seeds
GROUPS = {'published': PUBLISHED}  # names that stand for several rows


@dataclass(frozen=True)
class Row:
    """What is added to a workload's stack.

    Attributes:
        name: In tables and results.
        configs: Config files that come after the workload's.
        settings: Of this row alone.
        compresses: Whether it is not dense training: a workload has more settings for such rows.
        has_server: Whether its workers train through a parameter server, which no simulation has.
    """

    name: str
    configs: tuple[str, ...]
    settings: Settings = field(default_factory=dict)
    compresses: bool = True
    has_server: bool = False


def rows(names: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of some names, each of an algorithm or of a group, once.

    Raises:
        ValueError: For a name that is neither.
    """
    members = (member for name in names for member in GROUPS.get(name, (name,)))
    yield from map(algorithm, dict.fromkeys(members))


def algorithm(name: str) -> Row:
    """Return the row of an algorithm of the table. Raises ValueError where it has none."""
    from dgc.algorithms import Kind

    check_name('--rows', 'row', name, [*GROUPS, *table()])
    found = table()[name]
    has_server = found.kind is Kind.ASYNCHRONOUS
    return Row(name, found.configs, compresses=found.has_density, has_server=has_server)
