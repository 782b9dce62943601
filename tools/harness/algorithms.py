"""The algorithms that benchmarks and tools compare: rows of ``dgc.algorithms.ALGORITHMS``.

There is no second list: a benchmark measures each algorithm of the table that it can run, by its
name in the table. What is here are the settings in which a benchmark's row differs from the
algorithm's own, and rows that are the same algorithm with several settings.

dgc, and with it torch, is imported when the table is first read: `--help` needs neither.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgc import Composition
    from dgc.algorithms import Algorithm
    from dgc.exchanges import Exchange
    from dgc.parameter_server import Asynchronous

DENSITY = 0.001
COMPUTE = 'compute'  # row of a benchmark: a step without exchange
DENSE = 'dense'  # row of ALGORITHMS
# Names that earlier versions of a command line used, by the name that all of them use now.
ALIASES = {
    'gtop-k': 'gtopk',
    'gtop-k doubling': 'gtopk-doubling',
    'gtopk doubling': 'gtopk-doubling',
    'ok-topk': 'oktopk',
}

Settings = Mapping[str, Any]  # of an algorithm; a callable one is called for a new part each time
Make = Callable[[], 'Composition']


def part(path: str) -> Callable[[], Any]:
    """A setting that makes a part of dgc, such as 'planner:Whole', without importing it yet."""
    return lambda: pkgutil.resolve_name(f'dgc.{path}')()


PACKED: Settings = {'values': 'int8', 'indices': 'packed'}  # the shortest sparse messages
# All parts but the exchange are those of Deep Gradient Compression, so that rows differ by the
# exchange alone.
WITHIN_DGC: Settings = {**PACKED, 'memory': None, 'compressor': None}

# Rows of training steps: algorithm → name of the row → settings. Others have one row, by their own
# name, with packed messages (see ``compositions``).
STEP_ROWS: dict[str, dict[str, Settings]] = {
    'dgc': {
        'dgc': {},
        'dgc fp16 int32': {'fp16_values': True, 'int32_indices': True},
        'dgc packed': {'indices': 'packed'},
        'dgc packed int8': PACKED,
        'dgc per tensor': {**PACKED, 'planner': part('planner:PerTensor')},
        'dgc whole': {**PACKED, 'planner': part('planner:Whole')},
        'dgc merged': {**PACKED, 'planner': part('planner:Merged')},
        'dgc adaptive': {**PACKED, 'planner': part('planner:Adaptive')},
    },
    'gtopk': {'gtopk': WITHIN_DGC},
    'gtopk-doubling': {'gtopk-doubling': WITHIN_DGC},
    'spardl': {'spardl': {**WITHIN_DGC, 'block_compressor': part('compressors:SampledTopK')}},
    'oktopk': {'oktopk': WITHIN_DGC},
    'chunk': {'chunk': {**WITHIN_DGC, 'chunk': 1024}},
}

# Rows of exchanges by themselves, in the same way.
EXCHANGE_ROWS: dict[str, dict[str, Settings]] = {
    'dense': {'all-reduce': {}},
    'dgc': {'all-gather': {}},
    'spardl': {
        'spardl': {},
        'spardl 4 teams': {'teams': 4},
        'spardl 4 teams bruck': {'teams': 4, 'gather': part('exchanges:Bruck')},
    },
    'chunk': {'chunk': {'chunk': 64}},
    'hierarchical': {'hierarchical 2': {'local_size': 2}},
}


def canonical(name: str) -> str:
    """The present name of a row, from that name or from one of earlier versions."""
    return ALIASES.get(name, name)


def table() -> dict[str, Algorithm]:
    """``dgc.algorithms.ALGORITHMS``, imported when it is first needed."""
    from dgc.algorithms import ALGORITHMS

    return ALGORITHMS


def algorithm(name: str, density: float = DENSITY, **settings: Any) -> Composition:
    """A new composition of an algorithm of the table. settings: see ``Settings``."""
    return table()[name].composition(density, **new_parts(settings))


def new_parts(settings: Settings) -> dict[str, Any]:
    """Settings whose parts are made now."""
    return {name: each() if callable(each) else each for name, each in settings.items()}


def packed(density: float = DENSITY, **settings: Any) -> Composition:
    """Deep Gradient Compression with 8-bit values and packed indices."""
    return algorithm('dgc', density, **PACKED, **settings)


def own_settings(name: str, density: float) -> Composition:
    """An algorithm with its own settings; its messages are packed where they are sparse."""
    from dgc.codec import Codec

    made = algorithm(name, density)
    return replace(made, codec=Codec(**PACKED)) if is_sparse(made) else made


def is_sparse(composition: Composition) -> bool:
    """Whether the messages of a composition have indices."""
    from dgc.sparse import Payload

    return composition.exchange.writes(composition.compressor.payload) is Payload.SPARSE


def synchronous() -> Iterator[Algorithm]:
    """The algorithms that exchange gradients at every step.

    Those that lose truncation errors are excluded: they exchange the same messages as others.
    """
    from dgc.algorithms import Kind

    for each in table().values():
        if each.kind is Kind.SYNCHRONOUS and not each.composition().exchange.loses:
            yield each


@cache
def compositions(density: float = DENSITY) -> Mapping[str, Make]:
    """What makes the composition of each row of training steps, by name.

    These are the synchronous algorithms that go with the workloads' momentum SGD.

    Args:
        density: fraction of the elements that compressing compositions send, if they have one.
    """
    from tools.harness.workloads import is_trained_by_sgd

    found: dict[str, Make] = {}
    for each in synchronous():
        if each.optimizer is not None or not is_trained_by_sgd(each.composition()):
            continue
        if each.name in STEP_ROWS:
            for name, settings in STEP_ROWS[each.name].items():
                found[name] = partial(algorithm, each.name, density, **settings)
        else:
            found[each.name] = partial(own_settings, each.name, density)
    return found


@cache
def exchanges() -> Mapping[str, Make]:
    """What makes a composition with each exchange that is measured by itself, by name.

    These are the exchanges of selected elements, and an all-reduce. An algorithm whose exchange is
    that of another one has no row.
    """
    found: dict[str, Make] = {}
    described = set()
    for each in synchronous():
        if not each.has_density and each.name not in EXCHANGE_ROWS:
            continue
        for name, settings in EXCHANGE_ROWS.get(each.name, {each.name: {}}).items():
            make = partial(algorithm, each.name, **settings)
            exchange = make().exchange
            if identity(exchange) not in described:
                described.add(identity(exchange))
                found[name] = make
    return found


def training_exchanges() -> dict[str, Callable[[], Exchange]]:
    """The exchanges that may replace one another in a composition, by name in ``exchanges``.

    They have the settings of the rows of training steps. An exchange between machines counts as the
    one that it uses there.
    """
    found: dict[str, Callable[[], Exchange]] = {}
    described = set()
    makers = compositions()
    for each in synchronous():
        if not each.has_density or each.name not in makers:
            continue
        name = next(iter(EXCHANGE_ROWS.get(each.name, {each.name: {}})))
        exchange = between_machines(makers[each.name]().exchange)
        if identity(exchange) not in described:
            described.add(identity(exchange))
            found[name] = partial(exchange_of, makers[each.name])
    return found


def exchange_of(make: Make) -> Exchange:
    """A new exchange, that of a new composition."""
    return make().exchange


def between_machines(exchange: Exchange) -> Exchange:
    """The exchange that a hierarchical one uses between machines; any other one itself."""
    inner: Exchange = getattr(exchange, 'exchange', exchange)
    return inner


def identity(exchange: Exchange) -> str:
    """The class and settings of an exchange, as text."""
    from dgc.composition import describe

    return describe(exchange)


def asynchronous(density: float = DENSITY) -> dict[str, Callable[[], Asynchronous]]:
    """What makes the composition of each algorithm with a parameter server, by name.

    Messages have packed indices where they are sparse.
    """
    from dgc.algorithms import Kind

    def make(each: Algorithm) -> Asynchronous:
        settings = {'compress_ratio': density, 'indices': 'packed'} if each.has_density else {}
        made: Asynchronous = each.make(**settings)
        return made

    rows = [each for each in table().values() if each.kind is Kind.ASYNCHRONOUS]
    return {each.name: partial(make, each) for each in rows}
