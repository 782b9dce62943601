"""The algorithms that benchmarks and tools compare: the only list of their names.

``compositions`` and ``exchanges`` map a name to a function that makes a new composition or exchange
each time, since both have state. dgc is imported only there: a command line needs the names alone,
and a benchmark of an older dgc fails only in the rows that this version does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgc import Composition
    from dgc.exchanges import Exchange
    from dgc.parameter_server import Asynchronous

DENSITY = 0.001
COMPUTE = 'compute'  # row of a benchmark: a step without exchange
DENSE = 'dense'
SENDS_ALL = frozenset({DENSE, 'mgwfbp'})  # compositions that compress nothing
USES_TIMINGS = frozenset({'dgc merged', 'dgc adaptive', 'mgwfbp'})  # whose planner measures first
# Names that earlier versions of a command line used, by the name that all of them use now.
ALIASES = {'gtop-k': 'gtopk', 'gtop-k doubling': 'gtopk doubling', 'ok-topk': 'oktopk'}


def canonical(name: str) -> str:
    """The name of an algorithm in the tables of this module, from that name or an alias of it."""
    return ALIASES.get(name, name)


def library() -> Any:
    """The package dgc, imported when it is first needed."""
    import dgc

    return dgc


def parameter_server() -> Any:
    """The package dgc.parameter_server, imported when it is first needed."""
    import dgc.parameter_server

    return dgc.parameter_server


def packed(density: float = DENSITY, **settings: Any) -> Composition:
    """Deep Gradient Compression with 8-bit values and packed indices, its shortest messages."""
    return library().deep_gradient_compression(density, values='int8', indices='packed', **settings)


# The exchanges that compositions of this name use, with settings for training.
_TRAINING: dict[str, Callable[[], Exchange]] = {
    'all-gather': lambda: library().exchanges.AllGather(),
    'gtopk': lambda: library().exchanges.GTopK(),
    'gtopk doubling': lambda: library().exchanges.GTopKDoubling(),
    'spardl': lambda: library().exchanges.SparDL(compressor=library().compressors.SampledTopK()),
    'oktopk': lambda: library().exchanges.OkTopK(),
    'chunk': lambda: library().exchanges.ChunkAllReduce(chunk=1024),
}

# Exchanges by themselves, with the library's own settings, and some that no composition here uses.
_EXCHANGES: dict[str, Callable[[], Exchange]] = {
    'all-reduce': lambda: library().exchanges.AllReduce(),
    'all-gather': _TRAINING['all-gather'],
    'gtopk': _TRAINING['gtopk'],
    'gtopk doubling': _TRAINING['gtopk doubling'],
    'spardl': lambda: library().exchanges.SparDL(),
    'spardl 4 teams': lambda: library().exchanges.SparDL(teams=4),
    'spardl 4 teams bruck': lambda: library().exchanges.SparDL(
        teams=4, gather=library().exchanges.Bruck()
    ),
    'oktopk': _TRAINING['oktopk'],
    'chunk': lambda: library().exchanges.ChunkAllReduce(),
    'hierarchical 2': lambda: library().exchanges.Hierarchical(
        library().exchanges.AllGather(), local_size=2
    ),
}

_COMPOSITIONS: dict[str, Callable[[float], Composition]] = {
    DENSE: lambda _: library().dense(),
    'dgc': lambda density: library().deep_gradient_compression(density),
    'dgc fp16 int32': lambda density: library().deep_gradient_compression(
        density, fp16_values=True, int32_indices=True
    ),
    'dgc packed': lambda density: library().deep_gradient_compression(density, indices='packed'),
    'dgc packed int8': packed,
    'dgc per tensor': lambda density: packed(density, planner=library().planner.PerTensor()),
    'dgc whole': lambda density: packed(density, planner=library().planner.Whole()),
    'dgc merged': lambda density: packed(density, planner=library().planner.Merged()),
    'dgc adaptive': lambda density: packed(density, planner=library().planner.Adaptive()),
    'mgwfbp': lambda _: library().dense(planner=library().planner.Merged()),
    'gtopk': lambda density: packed(density, exchange=_TRAINING['gtopk']()),
    'gtopk doubling': lambda density: packed(density, exchange=_TRAINING['gtopk doubling']()),
    'spardl': lambda density: packed(density, exchange=_TRAINING['spardl']()),
    'oktopk': lambda density: packed(density, exchange=_TRAINING['oktopk']()),
    'chunk': lambda density: packed(density, exchange=_TRAINING['chunk']()),
}

_ASYNCHRONOUS: dict[str, Callable[[float], Asynchronous]] = {
    'dgs': lambda density: parameter_server().dual_way(density, indices='packed'),
    'asgd': lambda _: parameter_server().dual_way(
        1.0, memory=library().memory.MomentumCorrection()
    ),
}

ASYNCHRONOUS_NAMES = tuple(_ASYNCHRONOUS)
COMPOSITION_NAMES = tuple(_COMPOSITIONS)
EXCHANGE_NAMES = tuple(_EXCHANGES)


def compositions(density: float = DENSITY) -> dict[str, Callable[[], Composition]]:
    """The compositions that benchmarks measure, by name.

    Args:
        density: fraction of the elements that compressing compositions send.
    """
    return {name: partial(make, density) for name, make in _COMPOSITIONS.items()}


def asynchronous(density: float = DENSITY) -> dict[str, Callable[[], Asynchronous]]:
    """The compositions of training with a parameter server, by name; see :func:`compositions`."""
    return {name: partial(make, density) for name, make in _ASYNCHRONOUS.items()}


def exchanges() -> dict[str, Callable[[], Exchange]]:
    """The exchanges that are measured by themselves, by name, with the library's own settings."""
    return dict(_EXCHANGES)


def training_exchanges() -> dict[str, Callable[[], Exchange]]:
    """The exchanges of sparse messages that may replace one another in a composition, by name."""
    return dict(_TRAINING)
