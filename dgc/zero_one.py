"""0/1 Adam: local steps of Adam, whose summed momentum travels in one bit per element.

Lu et al., "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam", arXiv
2202.06009 (Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from dgc.buckets import Member
from dgc.checks import check_part
from dgc.composition import Composition
from dgc.engines import Engine
from dgc.local_steps import LocalSteps
from dgc.nonfinite import finite
from dgc.optim import ZeroOneAdam
from dgc.optim.zero_one_adam import Synchronization
from dgc.reducer import Reducer
from dgc.sources import Movement
from dgc.wiring import settings


@dataclass(frozen=True)
class SyncSchedule:
    """The steps at which the ranks average: the paper's sets T_u, of u, and T_v, of the gradient.

        step        0 … freeze_step                      then
        u           after every step                     every 2, 4, … ``every`` steps
        gradient    every 1, 2, 4, … steps               never: v is frozen

    Args:
        freeze_step: F, steps in which v may still change. Each ends with an average of u.
        variance_doubling: κ, changes of v after which the interval between two of them doubles.
        interval_doubling: Steps after F in which the interval between two averages of u is 2; after
            as many more it is 4, and so on; a multiple of ``every``.
        every: H, the longest of these intervals, a power of two; with 1 there are no local steps.

    Raises:
        ValueError: For settings out of range.
    """

    freeze_step: int = 100
    variance_doubling: int = 16
    interval_doubling: int = 32_768
    every: int = 16

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f'{name} must be a whole number, 1 or more, got {value!r}')
        if self.every & (self.every - 1):
            raise ValueError(f'every must be a power of two, got {self.every}')
        if self.interval_doubling % self.every:
            raise ValueError(
                f'interval_doubling must be a multiple of every = {self.every}, got '
                f'{self.interval_doubling}'
            )

    def changes_variance(self, step: int) -> bool:
        """Return whether v changes in ``step``, counted from 0."""
        if step >= self.freeze_step:
            return False
        # κ intervals of 1, κ of 2, κ of 4, …: those of 2^i begin at κ·(2^i - 1).
        stage = (step // self.variance_doubling + 1).bit_length() - 1
        begin = self.variance_doubling * (2**stage - 1)
        return (step - begin) % 2**stage == 0

    def _position(self, steps: int) -> tuple[int, int]:
        """Return the rounds that have ended after so many steps, and the steps since the last."""
        if steps <= self.freeze_step or self.every == 1:
            return steps, 0
        rounds, rest, interval = self.freeze_step, steps - self.freeze_step, 2
        while interval < self.every and rest > self.interval_doubling:
            rounds += self.interval_doubling // interval
            rest -= self.interval_doubling
            interval *= 2
        return rounds + rest // interval, rest % interval

    def rounds(self, steps: int) -> int:
        """Return the number of averages of u after so many steps."""
        return self._position(steps)[0]

    def within_round(self, steps: int) -> int:
        """Return the number of steps since the last of them."""
        return self._position(steps)[1]


class MomentumSum(Movement):
    """The sum u of momenta times rates since the ranks last agreed, in the place of a movement.

    Args:
        reducer: Whose buckets are filled.
        optimizer: Holds u.
    """

    def __init__(self, reducer: Reducer, optimizer: ZeroOneAdam) -> None:
        super().__init__(reducer)
        self._optimizer = optimizer

    def contribution(self, member: Member) -> Tensor:
        """Return u of a parameter, a copy."""
        unsent: Tensor = self._optimizer.held(member.parameter)['unsent']
        return unsent.clone()


class ZeroOneSteps(LocalSteps):
    """0/1 Adam: averages of its momentum in one bit from the first step on, further and further
    apart, and of gradients, for its variance, in some steps only.

        adam = dgc.optim.ZeroOneAdam(model.parameters(), lr=1e-3)
        composition = dgc.ALGORITHMS['zero-one-adam'].make()
        optimizer = dgc.ZeroOneSteps(adam, model.named_parameters(), composition,
                                     schedule=dgc.SyncSchedule(freeze_step=1000))
        loss.backward()
        optimizer.step()

    In each step, with the names of ``dgc.optim.ZeroOneAdam``:

        a local step from this rank's gradient g:  m, w, u
        where the schedule says so, ḡ, the uncompressed mean of g over the ranks:  v
        where a round ends, ū, the mean of u through the composition:  w, m;  u ← 0

    The order is Adam's: v changes before the movement that it scales. In the paper's Algorithm 1 it
    changes after it.

    Between two rounds the ranks' parameters and momenta differ, v does not; otherwise as
    LocalSteps: ``agreed_parameters()``, ``state_dict()`` after any step, a GradScaler. Where a mean
    gradient is not finite, v stays as it is.

    Args:
        optimizer: Takes local steps.
        named_parameters: Of the whole model; see LocalSteps.
        composition: The parts that process u; uncompressed by default.
        engine: By default that of ``dgc.create()``.
        schedule: When the ranks average.
        steps_per_epoch, configuration: As those of LocalSteps.

    Raises:
        TypeError, ValueError, HandshakeError: As LocalSteps.
    """

    inner: ZeroOneAdam

    def __init__(
        self,
        optimizer: ZeroOneAdam,
        named_parameters: Iterable[tuple[str, Parameter]] | None = None,
        composition: Composition | None = None,
        engine: Engine | None = None,
        schedule: SyncSchedule | None = None,
        steps_per_epoch: int | None = None,
        configuration: str = '',
    ) -> None:
        self.schedule = SyncSchedule() if schedule is None else schedule
        check_part('optimizer', optimizer, ZeroOneAdam, 'ZeroOneAdam(model.parameters())')
        check_part('schedule', self.schedule, SyncSchedule, 'SyncSchedule(freeze_step=1000)')
        super().__init__(
            optimizer,
            Synchronization(optimizer),
            named_parameters,
            composition,
            engine,
            self.schedule.every,
            steps_per_epoch,
            configuration,
        )
        optimizer.is_synchronized = True

    def _source(self) -> MomentumSum:
        """Return u."""
        return MomentumSum(self.reducer, self.inner)

    def _periods(self) -> dict[str, str]:
        """Return what ranks must have alike: name → text."""
        return {
            'the steps at which 0/1 Adam averages': str(self.schedule),
            'the settings of ZeroOneAdam': str(settings(self.inner)),
        }

    def _rounds(self, steps: int) -> int:
        """Return the number of rounds that have ended after so many steps."""
        return self.schedule.rounds(steps)

    @property
    def _within_round(self) -> int:
        """Steps since the last round ended."""
        return self.schedule.within_round(self.steps)

    def _exchange(self) -> None:
        """Average gradients and u where the schedule says so."""
        self.inner.add_rates()
        if self.schedule.changes_variance(self.steps - 1):
            self._follow_gradients()
        super()._exchange()

    def _follow_gradients(self) -> None:
        """Change v by the mean gradient, unless that is not finite. A collective.

        A rank without a gradient for a parameter counts as zero.
        """
        parameters = [member.parameter for member in self.source.members]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        means = self._mean_of([each.to_dense() for each in gradients])
        if finite(*means):
            self.inner.follow(dict(zip(parameters, means, strict=True)))

    def _reset_inner(self) -> None:
        """Begin the round again, after one that all ranks skip."""
        self.inner.restart()

    def _begin_again(self) -> None:
        """See LocalSteps: without the sum of another rank's momenta, too."""
        super()._begin_again()
        self.inner.restart(goes_on=self._within_round > 0)

    def detach(self) -> None:
        """See ``LocalSteps.detach``; the optimizer takes no steps by itself."""
        super().detach()
        self.inner.is_synchronized = False
