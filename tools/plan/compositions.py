"""The compositions that are compared: dense, the user's, and that with every other exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import dgc
from dgc import Composition
from dgc.compressors import Dense, SampledTopK
from dgc.engines import LocalEngine
from dgc.engines.group import Group
from dgc.exchanges import AllReduce, Exchange, Hierarchical
from dgc.planner import BySize, Fragments, Plan
from dgc.sparse import Payload
from tools.harness.algorithms import (
    DENSE,
    DENSITY,
    between_machines,
    identity,
    packed,
    training_exchanges,
)
from tools.plan.rounds import Rounds

YOURS = 'yours'  # name of the composition of the user's stack
MOST = 32  # an exchange that serves no number of workers up to this is not measured

Make = Callable[[], Composition]  # makes a new one every time, since exchanges have state


class UnfitError(Exception):
    """A composition cannot be measured here. The message is one line for the user."""


class Candidate(NamedTuple):
    """A composition that is compared.

    plan: buckets of an earlier run, for its planner. rounds: of local steps, if it exchanges their
    movements.
    """

    name: str
    make: Make
    plan: Plan | None = None
    rounds: Rounds | None = None


class Comparison(NamedTuple):
    """All compositions that are compared, dense first. notes: for the user, about the choice."""

    candidates: list[Candidate]
    notes: list[str]

    @property
    def own(self) -> Make:
        """What makes the composition of the user's stack."""
        return next((c.make for c in self.candidates if c.name == YOURS), self.candidates[0].make)


def comparison(stack: Make, rounds: Rounds | None = None) -> Comparison:
    """Choose what is compared with the composition that ``stack`` makes.

    Args:
        stack: Makes it.
        rounds: Of its local steps. The other compositions exchange gradients, in every step.
    """
    candidates, notes = [Candidate(DENSE, dgc.dense)], []
    base = stack
    if isinstance(stack().exchange, Hierarchical):
        notes.append(
            'your stack sums inside each machine first: a worker here is a machine, and the sum '
            'inside it is not counted'
        )
        base = without_machines(stack)
    if base().planner.needs_timing:
        notes.append(
            'your stack divides the model by times measured in the run: here it is divided by '
            'size; --timeline shows what merging makes of it'
        )
        base = by_size(base)
    own = base().exchange
    if rounds is not None and rounds.after:
        notes.append(f'the first {rounds.after} steps each end with an exchange: not predicted')
    if rounds is not None or compresses(base()):
        mine = base if rounds is None else in_fragments(base, rounds.fragments)
        candidates.append(Candidate(YOURS, mine, rounds=rounds))
    if reason := unlike_others(base(), rounds):
        notes.append(
            f'your stack {reason}: compared with Deep Gradient Compression at {DENSITY:.1%}, with '
            '8-bit values and packed indices'
        )
        base = packed
    candidates += [
        Candidate(name, with_exchange(base, exchange))
        for name, exchange in training_exchanges().items()
        if base is packed or identity(own) != identity(exchange())
    ]
    return Comparison(candidates, notes)


def unlike_others(composition: Composition, rounds: Rounds | None) -> str:
    """Why a stack is not compared at its own density, after 'your stack'; '' if it is."""
    if rounds is not None:
        steps = 'single steps' if rounds.every == 1 else f'{rounds.every} local steps'
        return f'exchanges movements of {steps}'
    if has_density(composition):
        return ''
    return 'has no density' if compresses(composition) else 'is dense'


def compresses(composition: Composition) -> bool:
    """Whether the composition compresses anything after its warm-up."""
    return composition.schedule.density is not None and not isinstance(
        composition.exchange, AllReduce
    )


def has_density(composition: Composition) -> bool:
    """Whether its density says how many elements are sent after its warm-up."""
    return compresses(composition) and composition.schedule.density != 1


def with_exchange(make: Make, exchange: Callable[[], Exchange]) -> Make:
    """The same composition with another exchange, and with a compressor that fits it; without a
    control of densities where that selects nothing."""

    def made() -> Composition:
        composition, replacement = make(), exchange()
        compressor, control = composition.compressor, composition.control
        if Payload.SPARSE not in replacement.accepts:
            compressor, control = Dense(), None
        elif compressor.payload is Payload.DENSE:
            compressor = SampledTopK()
        return replace(composition, exchange=replacement, compressor=compressor, control=control)

    return made


def without_machines(make: Make) -> Make:
    """The same composition with the exchange that a hierarchical one uses between machines."""

    def made() -> Composition:
        composition = make()
        return replace(composition, exchange=between_machines(composition.exchange))

    return made


def by_size(make: Make) -> Make:
    """The same composition with the planner that measures nothing."""
    return lambda: replace(make(), planner=BySize())


def in_fragments(make: Make, fragments: int) -> Make:
    """The same composition with the buckets of a model that is divided into fragments."""
    if fragments == 1:
        return make
    return lambda: replace(made := make(), planner=Fragments(made.planner, fragments))


def unfit(exchange: Exchange, workers: int) -> str:
    """The reason why an exchange cannot serve a number of workers; '' if it can."""
    try:
        exchange.check(Group(LocalEngine(), range(workers)))
    except ValueError as error:
        return str(error)
    return ''


def sizes(exchange: Exchange, count: int) -> list[int]:
    """``count`` numbers of workers that an exchange serves: the first from 2 on, and its doubles.

    Raises:
        UnfitError: it serves none of 2 to MOST workers.
    """
    first = next((size for size in range(2, MOST + 1) if not unfit(exchange, size)), 0)
    if not first:
        raise UnfitError(unfit(exchange, MOST))
    return [first << power for power in range(count)]
