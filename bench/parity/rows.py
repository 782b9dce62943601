"""The rows that are compared: algorithms of ``dgc.algorithms``, and variants of their settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bench.parity.workloads import Settings, Workload
from tools.harness.algorithms import DENSE, is_sparse, table
from tools.harness.cli import check_name

PUBLISHED = (DENSE, 'dgc', 'gtopk', 'spardl', 'oktopk', 'omgs', 'dgs')
ALL = 'all'  # name of a group: the whole table
REPEATED = (DENSE, 'dgc')  # rows that are trained with --seeds seeds, the others with --other-seeds
# Before the files of local steps, which have no clipping of gradients, as a model's files may have.
UNCLIPPED = ('configs/dense/sgd.py',)
DENSITIES = (0.001, 0.01, 0.05, 0.1)  # of the rows for optimizers with two moments, such as AdamW
FIRST_MOMENT = ('configs/optim/first_moment.py',)
# What these rows compress: config files that come last, and settings; see ADAPTIVE.
COMPRESSED: dict[str, tuple[tuple[str, ...], Settings]] = {
    'residual': ((), {}),
    'moment': (FIRST_MOMENT, {}),
    'moment-masked': (FIRST_MOMENT, {'train.compression.memory.momentum_masking': True}),
    'residual-layers': (('configs/dgc/per_tensor.py',), {}),
    'movement': (('configs/optim/movement.py',), {}),
}


@dataclass(frozen=True)
class Row:
    """What is added to a workload's stack.

    Attributes:
        name: In tables and results.
        configs: Config files that come after the workload's.
        after: Config files that come last.
        settings: Of this row alone.
        compresses: Whether it has a density: a workload has more settings for such rows.
        has_indices: Whether its messages have indices.
        has_server: Whether its workers train through a parameter server, which no simulation has.
        is_local: Whether its workers take local steps.
        has_own_rule: Whether its config files choose the optimizer; see ``Algorithm``.
    """

    name: str
    configs: tuple[str, ...]
    after: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)
    compresses: bool = True
    has_indices: bool = True
    has_server: bool = False
    is_local: bool = False
    has_own_rule: bool = False


def adaptive() -> dict[str, Row]:
    """Return rows of Deep Gradient Compression's exchange under an adaptive optimizer, by name.

    'residual' feeds unsent gradients back and leaves both moments to the optimizer, and
    'residual-layers' selects from each tensor by itself; 'moment' has the first moment in the
    memory, before compression; 'movement' compresses the steps of each rank's own optimizer, in
    place of gradients. A density is reached by the workload's warm-up or, with 'cold', from the
    first step on.
    """
    found = {}
    for density in DENSITIES:
        for what, (after, settings) in COMPRESSED.items():
            for start in ('', '-cold'):
                if start and what != 'residual':  # which says what the warm-up does
                    continue
                name = f'{what}-{density:g}{start}'
                own = {**settings, 'train.compression.compress_ratio': density}
                if start:
                    own |= {'train.compression.warmup_epochs': 0}
                    own |= {'train.compression.warmup_steps': 0}
                found[name] = Row(name, ('configs/dgc/wm5.py',), after, own)
    return found


ADAPTIVE = adaptive()
# Name → an algorithm of the table, and the config files that make this variant of it.
LOCAL_VARIANTS = {
    'local-sgd': ('diloco', 'configs/diloco/local_sgd.py'),
    'post-local': ('diloco', 'configs/diloco/post_local.py'),
    'des-loc': ('diloco', 'configs/diloco/desloc.py'),
    'diloco-int4': ('quantized-diloco', 'configs/diloco/int4.py'),
    'diloco-fp4': ('quantized-diloco', 'configs/diloco/fp4.py'),
}
VARIANTS = {'dgc-memory16': ('dgc',), **LOCAL_VARIANTS}
AFTER = {'dgc-memory16': ('configs/dgc/memory16.py',)}  # the last files of a variant
LOCAL = (
    *('diloco', 'quantized-diloco', 'streaming-diloco', 'sparse-loco', 'muloco', 'zero-one-adam'),
    *LOCAL_VARIANTS,
)
EVERY_STEP = ('dgc', 'residual-0.01', 'power-sgd', 'demo', 'one-bit-adam')
GROUPS = {  # names of several rows
    'published': PUBLISHED,
    'adaptive': (DENSE, *ADAPTIVE),
    'local': (DENSE, *LOCAL),
    'low-communication': (DENSE, *EVERY_STEP, *LOCAL),
}


def rows(names: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of some names, each of an algorithm, a variant or a group, once.

    Raises:
        ValueError: For a name that is neither.
    """
    members = (member for name in names for member in members_of(name))
    for member in dict.fromkeys(members):
        yield ADAPTIVE[member] if member in ADAPTIVE else algorithm(member)


def members_of(name: str) -> Iterable[str]:
    """Return the names of the rows of a group; of a row, its own."""
    return table() if name == ALL else GROUPS.get(name, (name,))


def algorithm(name: str) -> Row:
    """Return the row of an algorithm of the table, or of a variant of one.

    Raises:
        ValueError: Where there is none of that name.
    """
    from dgc.algorithms import Kind

    check_name('--rows', 'row', name, [ALL, *GROUPS, *table(), *ADAPTIVE, *VARIANTS])
    base, *files = VARIANTS.get(name, (name,))
    found = table()[base]
    is_local = found.kind in (Kind.LOCAL_STEPS, Kind.ASYNCHRONOUS_LOCAL_STEPS)
    has_server = found.kind.has_server
    return Row(
        name,
        (*(UNCLIPPED if is_local else ()), *(files or found.configs)),
        AFTER.get(name, ()),
        compresses=found.has_density,
        has_indices=found.has_density and (has_server or is_sparse(found.composition())),
        has_server=has_server,
        is_local=is_local,
        has_own_rule=found.has_own_rule,
    )


def impossible(row: Row, workload: Workload) -> str | None:
    """Return why a row cannot be trained in a workload; None where it can."""
    if row.has_server and workload.optimizer and not row.is_local:
        return 'the update of a parameter server is that of SGD'
    if row.name in ADAPTIVE and not workload.optimizer:
        return 'for optimizers with two moments, such as AdamW'
    return None
