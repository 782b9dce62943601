"""What is compared: dense, the user's own stack, and that with each other exchange in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import dgc
from dgc import Composition
from dgc.compressors import Dense, SampledTopK
from dgc.engines import LocalEngine
from dgc.engines.group import Group
from dgc.exchanges import (
    AllGather,
    AllReduce,
    ChunkAllReduce,
    Exchange,
    GTopK,
    GTopKDoubling,
    Hierarchical,
    OkTopK,
    SparDL,
)
from dgc.planner import BySize, Timed

DENSE, YOURS = 'dense', 'yours'
RATIO = 0.001
MANY = 32  # workers: an exchange that needs more to begin with is not measured
EXCHANGES: dict[str, Callable[[], Exchange]] = {
    'all-gather': AllGather,
    'gtopk': GTopK,
    'gtopk doubling': GTopKDoubling,
    'spardl': lambda: SparDL(compressor=SampledTopK()),
    'oktopk': OkTopK,
    'chunk': lambda: ChunkAllReduce(chunk=1024),
}

Make = Callable[[], Composition]  # a new one every time, since exchanges remember


class UnfitError(Exception):
    """A composition cannot be measured here. Its text is one line, meant for the user."""


class Candidate(NamedTuple):
    """A composition that may win."""

    name: str
    make: Make


class Field(NamedTuple):
    """All that are compared, dense first. notes: what the user should know of the choice."""

    candidates: list[Candidate]
    notes: list[str]


def field(yours: Make) -> Field:
    """From the composition of the user's stack, which ``yours`` makes."""
    candidates, notes = [Candidate(DENSE, dgc.dense)], []
    base = yours
    if isinstance(yours().exchange, Hierarchical):
        notes.append(
            'your stack sums inside each machine first: a worker here is a machine, and the sum '
            'inside it is not counted'
        )
        base = between_machines(yours)
    if isinstance(base().planner, Timed):
        notes.append(
            'your stack divides the model by times measured in the run: here it is divided by '
            'size; --timeline shows what merging makes of it'
        )
        base = by_size(base)
    own = base().exchange
    if compresses(base()):
        candidates.append(Candidate(YOURS, base))
    else:
        notes.append(
            f'your stack is dense: compared with Deep Gradient Compression at {RATIO:.1%}, with '
            '8-bit values and packed indices'
        )
        base = packed
    candidates += [
        Candidate(name, with_exchange(base, exchange))
        for name, exchange in EXCHANGES.items()
        if not alike(own, exchange())
    ]
    return Field(candidates, notes)


def compresses(composition: Composition) -> bool:
    """Whether anything is left out once the warm-up is over."""
    return composition.schedule.ratio < 1 and not isinstance(composition.exchange, AllReduce)


def packed() -> Composition:
    """What a dense stack is compared with."""
    return dgc.deep_gradient_compression(RATIO, values='int8', indices='packed')


def alike(one: Exchange, other: Exchange) -> bool:
    """Whether two exchanges that have done nothing yet have the same settings."""
    return description(one) == description(other)


def description(part: Any) -> Any:
    """A part's class and settings, and those of the parts in it."""
    if not type(part).__module__.startswith('dgc.'):
        return part
    return type(part), {name: description(setting) for name, setting in vars(part).items()}


def with_exchange(make: Make, exchange: Callable[[], Exchange]) -> Make:
    """The same composition with another exchange, and a compressor that fits where its own does
    not."""

    def made() -> Composition:
        composition, ours = make(), exchange()
        compressor = composition.compressor
        if ours.selects:
            compressor = Dense()
        elif isinstance(compressor, Dense):
            compressor = SampledTopK()
        return replace(composition, exchange=ours, compressor=compressor)

    return made


def between_machines(make: Make) -> Make:
    """The same with the exchange that a hierarchical one has between machines."""

    def made() -> Composition:
        composition = make()
        exchange = composition.exchange
        return replace(composition, exchange=getattr(exchange, 'exchange', exchange))

    return made


def by_size(make: Make) -> Make:
    """The same with the planner that measures nothing."""
    return lambda: replace(make(), planner=BySize())


def unfit(exchange: Exchange, workers: int) -> str:
    """Why an exchange cannot serve so many workers; '' where it can."""
    try:
        exchange.check(Group(LocalEngine(), range(workers)))
    except ValueError as error:
        return str(error)
    return ''


def sizes(exchange: Exchange, count: int) -> list[int]:
    """Numbers of workers that it serves: the first from 2 on, and its doubles, so many in all.

    Raises UnfitError where it serves none of the first.
    """
    first = next((size for size in range(2, MANY + 1) if not unfit(exchange, size)), 0)
    if not first:
        raise UnfitError(unfit(exchange, MANY))
    return [first << power for power in range(count)]
