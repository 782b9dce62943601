"""The rows that are compared: algorithms of ``dgc.algorithms``, and variants of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bench.parity.workloads import Settings
from tools.harness.algorithms import DENSE, table
from tools.harness.cli import check_name

PUBLISHED = (DENSE, 'dgc', 'gtopk', 'spardl', 'oktopk', 'omgs', 'dgs')
REPEATED = (DENSE, 'dgc')  # rows that are trained with --seeds seeds, the others with --other-seeds
DENSITIES = (0.001, 0.01, 0.05)  # of the rows for optimizers with two moments, such as AdamW
MEMORIES: dict[str, Settings] = {  # where their first moment is, by name; see ADAPTIVE
    'residual': {},
    'moment': {},
    'moment-masked': {'train.compression.memory.momentum_masking': True},
}


@dataclass(frozen=True)
class Row:
    """What is added to a workload's stack.

    Attributes:
        name: In tables and results.
        configs: Config files that come after the workload's.
        after: Config files that come last.
        settings: Of this row alone.
        compresses: Whether it is not dense training: a workload has more settings for such rows.
        has_server: Whether its workers train through a parameter server, which no simulation has.
    """

    name: str
    configs: tuple[str, ...]
    after: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)
    compresses: bool = True
    has_server: bool = False


def adaptive() -> dict[str, Row]:
    """Return rows of Deep Gradient Compression's exchange under an adaptive optimizer, by name.

    'residual' feeds unsent gradients back and leaves both moments to the optimizer; 'moment' has
    the first one in the memory, before compression. A density is reached by the workload's warm-up
    or, with 'cold', from the first step on.
    """
    found = {}
    for density in DENSITIES:
        for memory, settings in MEMORIES.items():
            for start in ('', '-cold'):
                if start and memory != 'residual':  # which says what the warm-up does
                    continue
                name = f'{memory}-{density:g}{start}'
                own = {**settings, 'train.compression.compress_ratio': density}
                if start:
                    own |= {'train.compression.warmup_epochs': 0}
                    own |= {'train.compression.warmup_steps': 0}
                after = () if memory == 'residual' else ('configs/optim/first_moment.py',)
                found[name] = Row(name, ('configs/dgc/wm5.py',), after, own)
    return found


ADAPTIVE = adaptive()
GROUPS = {'published': PUBLISHED, 'adaptive': (DENSE, *ADAPTIVE)}  # names of several rows


def rows(names: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of some names, each of an algorithm, a variant or a group, once.

    Raises:
        ValueError: For a name that is neither.
    """
    members = (member for name in names for member in GROUPS.get(name, (name,)))
    for member in dict.fromkeys(members):
        yield ADAPTIVE[member] if member in ADAPTIVE else algorithm(member)


def algorithm(name: str) -> Row:
    """Return the row of an algorithm of the table. Raises ValueError where it has none."""
    check_name('--rows', 'row', name, [*GROUPS, *table(), *ADAPTIVE])
    found = table()[name]
    has_server = found.kind.has_server
    return Row(name, found.configs, compresses=found.has_density, has_server=has_server)
