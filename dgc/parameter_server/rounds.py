"""Rounds of asynchronous DiLoCo: what learners push of a fragment until it takes an outer step.

Decoupled DiLoCo, arXiv 2604.21428; a factor for what is late, as in Liu et al., arXiv 2401.09135.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dgc.checks import check_numbers, check_part
from dgc.parameter_server.composition import InverseRounds, Scaling
from dgc.planner.fragments import strided
from dgc.sparse import Sparse

# A learner's session → the samples of its movement, and that as float32 ``[n]`` by bucket.
Contributions = dict[int, 'Contribution']


@dataclass(frozen=True)
class Rounds:
    """How learners and their server go through rounds.

    Attributes:
        every: H, inner steps of a learner between two pushes of a fragment.
        fragments: F, parts of the model that are pushed one after another, H/F steps apart.
        quorum: K, learners whose movement of a fragment its outer step needs; None for more than
            half of the worker slots. Where fewer learners are connected, all of these.
        grace: Seconds after the quorum in which movements of others still come into the round. It
            ends earlier where no learner is missing.
        scaling: Factor of a movement by the rounds that it is late.
        pull_every: Inner steps between two looks of a learner for the end of a round.

    Raises:
        TypeError, ValueError: For values that cannot be meant.
    """

    every: int = 30
    fragments: int = 1
    quorum: int | None = None
    grace: float = 1.0
    scaling: Scaling = field(default_factory=InverseRounds)
    pull_every: int = 1

    def __post_init__(self) -> None:
        check_numbers(every=self.every, fragments=self.fragments, grace=self.grace)
        check_numbers(pull_every=self.pull_every, quorum=1 if self.quorum is None else self.quorum)
        check_part('scaling', self.scaling, Scaling, 'InverseRounds()')
        for name in ('every', 'fragments', 'pull_every', 'quorum'):
            value = getattr(self, name)
            if value is not None and (value < 1 or value != int(value)):
                raise ValueError(f'{name} must be a whole number from 1 on, got {value}')
        if self.every % self.fragments:
            raise ValueError(
                f'every = {self.every} must be a multiple of fragments = {self.fragments}, which '
                'are pushed in equal distances: change one of the two'
            )
        if not 0 <= self.grace < float('inf'):
            raise ValueError(f'grace must be at least 0 seconds and finite, got {self.grace}')

    @property
    def period(self) -> int:
        """Inner steps between two pushes of a learner."""
        return self.every // self.fragments

    def needed(self, slots: int, connected: int) -> int:
        """Return how many learners' movements an outer step needs now.

        Args:
            slots: Learners that may train at the same time.
            connected: Those that are connected.
        """
        wanted = slots // 2 + 1 if self.quorum is None else self.quorum
        return min(wanted, connected)


def places_of(
    fragments: int, names: Sequence[str], buckets: Sequence[Sequence[str]]
) -> list[list[int]]:
    """Return the indices of the buckets of each fragment.

    Args:
        fragments: How many there are.
        names: Of the parameters that are trained, in the model's order.
        buckets: The names in each bucket, which lies in one fragment.

    Raises:
        ValueError: For fewer layers than fragments.
    """
    return [
        [place for place, held in enumerate(buckets) if held[0] in part]
        for part in map(set, strided(names, fragments))
    ]


@dataclass
class Contribution:
    """What one learner, or several that are summed up, has pushed in an open round.

    Attributes:
        samples: On which the movement was trained.
        movement: By bucket of the fragment; of several learners times the samples of each.
    """

    samples: int
    movement: list[Tensor]


class Round:
    """The open round of one fragment.

    A learner's pushes add up to one contribution; the mean over learners is weighted by samples:

        Δ_w ← Σ f(s)·Δ,  n_w ← Σ n             over the pushes of learner w
        mean = Σ n_w·Δ_w / Σ n_w               over learners

    At most ``most`` contributions are kept apart. Beyond that the oldest is summed up with others;
    it is of a learner that has left, or of one whose later pushes count as another's.

    Args:
        numels: Elements of each bucket of the fragment.
        most: Contributions that are kept apart.

    Attributes:
        number: Rounds that have ended.
        quorum_at: Seconds of the server's clock when there were enough; None before that.
    """

    def __init__(self, numels: Sequence[int], most: int) -> None:
        self.number = 0
        self.quorum_at: float | None = None
        self._numels, self._most = list(numels), most
        self._own: Contributions = {}
        self._others: Contribution | None = None
        self._other_learners = 0

    def __len__(self) -> int:
        """Learners that have contributed."""
        return len(self._own) + self._other_learners

    def __contains__(self, session: int) -> bool:
        return session in self._own

    @property
    def samples(self) -> int:
        """Samples on which what is pushed and not applied was trained."""
        parts = [*self._own.values(), *([self._others] if self._others else [])]
        return sum(part.samples for part in parts)

    def lacks(self, sessions: Collection[int]) -> bool:
        """Return whether one of these learners has not contributed."""
        return any(session not in self._own for session in sessions)

    def add(self, session: int, parts: Sequence[Sparse], samples: int, factor: float) -> None:
        """Add ``factor`` times a movement to the contribution of a learner."""
        if session not in self._own:
            if len(self._own) == self._most:
                self._sum_up(next(iter(self._own)))
            self._own[session] = Contribution(
                0, [torch.zeros(n, dtype=torch.float32) for n in self._numels]
            )
        own = self._own[session]
        own.samples += samples
        for flat, part in zip(own.movement, parts, strict=True):
            part.add_to(flat, alpha=factor)

    def _sum_up(self, session: int) -> None:
        """Add a learner's contribution to those that are not kept apart."""
        gone = self._own.pop(session)
        if self._others is None:
            self._others = Contribution(
                0, [torch.zeros(n, dtype=torch.float32) for n in self._numels]
            )
        self._others.samples += gone.samples
        self._other_learners += 1
        for flat, values in zip(self._others.movement, gone.movement, strict=True):
            flat.add_(values, alpha=gone.samples)

    def end(self) -> list[Tensor]:
        """Return the mean movement by bucket, and begin the next round, which is empty."""
        samples = self.samples
        for session in list(self._own):
            self._sum_up(session)
        assert self._others is not None
        mean = [flat.div_(samples) for flat in self._others.movement]
        self.number += 1
        self._others, self._other_learners, self.quorum_at = None, 0, None
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return the round's number and what is pushed and not applied."""
        parts = {str(session): part for session, part in self._own.items()}
        if self._others is not None:
            parts['others'] = self._others
        held = {
            name: {'samples': part.samples, 'movement': [flat.clone() for flat in part.movement]}
            for name, part in parts.items()
        }
        return {'number': self.number, 'others': self._other_learners, 'contributions': held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``. Raises ValueError where it is of other buckets."""
        self.number, self._other_learners = int(state['number']), int(state['others'])
        self._own, self._others, self.quorum_at = {}, None, None
        for name, held in state['contributions'].items():
            movement = [flat.clone() for flat in held['movement']]
            if [len(flat) for flat in movement] != self._numels:
                raise ValueError('the checkpoint has an open round of other fragments')
            part = Contribution(int(held['samples']), movement)
            if name == 'others':
                self._others = part
            else:
                self._own[int(name)] = part
