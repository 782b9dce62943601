"""Local steps: the ranks train by themselves, and average their movement every H steps.

Local SGD        an outer SGD of rate 1           (Stich, arXiv 1805.09767)
post-local SGD   the same, from a step on         (Lin et al., arXiv 1808.07217)
DiLoCo           an outer SGD, Nesterov momentum  (Douillard et al., arXiv 2311.08105, Algorithm 1)
DES-LOC          averages the inner moments too   (Iacob et al., arXiv 2505.22549)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.composition import Composition
from dgc.engines import Engine, create
from dgc.handshake import broadcast_tensors, gather_states
from dgc.optim.closures import refuse_closures
from dgc.outer_settings import OuterSettings
from dgc.ownership import Guard, check_free, release, take, weakly
from dgc.reducer import Reducer
from dgc.saved_state import join_ranks, labelled, share_of
from dgc.scaling import called_by_scaler, step_scaled
from dgc.sources import Movement, check_inner, check_trained
from dgc.wiring import (
    check,
    check_present_momentum,
    forget_memory,
    groups_of,
    regroup,
    trained,
    wire,
    with_names,
)
from dgc.wrapper import Wrapper


class LocalSteps(Wrapper):
    """``every`` steps of an inner optimizer on each rank, then one outer step on the mean movement.

        inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        optimizer = dgc.LocalSteps(inner, outer, model.named_parameters(), every=30)
        loss.backward()
        optimizer.step()

    From the parameters θ_s on which all ranks agree (DiLoCo, Algorithm 1):

        θ ← H inner steps from θ_s,  Δ = θ_s - θ
        Δ goes through the composition: error feedback, compression, exchange
        θ_s ← outer step from θ_s with the mean Δ in the place of a gradient,  θ ← θ_s

    It shares ``param_groups`` and ``state`` with ``inner``, so learning rate schedulers work on it.
    The inner optimizer's state stays local. Between outer steps the ranks' parameters differ;
    ``agreed_parameters()`` puts θ_s into the model, for evaluation. A copy of the parameters is
    kept for θ_s.

    ``scaler.step(optimizer)`` of a ``torch.amp.GradScaler`` takes inner steps. Scale and overflow
    are a rank's own: it skips its inner step, which counts as one, so that all ranks send Δ in the
    same step.

    Args:
        inner: Takes local steps, at the learning rate of one rank.
        outer: Over the same parameters.
        named_parameters: Of the whole model; all that ``outer`` updates must be among them. By
            default those of ``outer``, named by their place in its groups.
        composition: The parts that process Δ; uncompressed by default. Its schedule, and its
            ``warmup_steps``, count outer steps; an epoch has ``steps_per_epoch / every`` of them.
        engine: By default that of ``dgc.create()``. Several optimizers may share one; see
            DistributedOptimizer.
        every: H, inner steps between two outer steps.
        after: So many first steps each end with an outer step (post-local SGD).
        moments: Entry of the inner optimizer's state, such as 'exp_avg' → inner steps between two
            averages of it over the ranks, a multiple of ``every`` (DES-LOC). None are averaged by
            default.
        steps_per_epoch: Inner steps in an epoch, for a warm-up by epochs.
        configuration: Any text that must be the same on all ranks.

    Raises:
        TypeError: Where a setting is of a wrong type.
        ValueError: Where settings contradict each other.
        HandshakeError: Where ranks differ.
    """

    def __init__(
        self,
        inner: Optimizer,
        outer: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]] | None = None,
        composition: Composition | None = None,
        engine: Engine | None = None,
        every: int = 30,
        steps_per_epoch: int | None = None,
        configuration: str = '',
        after: int = 0,
        moments: Mapping[str, int] | None = None,
    ) -> None:
        self.every, self.after, self.moments = every, after, dict(moments or {})
        self._check_periods()
        composition = Composition() if composition is None else composition
        named = with_names(outer, named_parameters)
        check_inner(inner)
        check(outer, named, composition, steps_per_epoch)
        if inner is outer:
            raise ValueError('inner and outer are one optimizer: give two over the same parameters')
        refuse_closures(outer, 'and an outer step has none', 'use DistributedOptimizer')
        if groups_of(inner).keys() != groups_of(outer).keys():
            raise ValueError('inner and outer must update the same parameters')
        check_free((name, parameter) for name, parameter, _ in trained(outer, named))
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.outer = inner, outer
        self._outer_settings = OuterSettings(outer)
        self._use(self.inner)
        engine = engine or create(device=named[0][1].device)
        epoch = None if steps_per_epoch is None else max(steps_per_epoch // every, 1)
        self.reducer, self.plan = wire(
            outer, named, composition, engine, epoch, configuration, agreed=self._periods()
        )
        self.reducer.counts_steps = False  # step() counts inner steps
        self.engine = self.reducer.engine
        broadcast_tensors(self.engine, [parameter for _, parameter in named])
        self.steps = 0
        self._rounds_per_epoch = epoch or 1
        self.source = self._source()
        self._names = {parameter: name for name, parameter in named}
        self._wrapped = {member.parameter for member in self.source.members}
        self._handles = [
            inner.register_load_state_dict_post_hook(weakly(self._regroup)),
            outer.register_load_state_dict_post_hook(weakly(self._regroup)),
        ]
        self._inner_guard, self._outer_guard = Guard(inner, self), Guard(outer, self)
        take(self, self._wrapped)

    def _source(self) -> Movement:
        """Return what the ranks average."""
        return Movement(self.reducer)

    def _check_periods(self) -> None:
        """Raise ValueError for periods in which nothing could be averaged."""
        if self.every < 1:
            raise ValueError(f'every must be at least 1 inner step, got {self.every}')
        if self.after < 0:
            raise ValueError(f'after must be at least 0 inner steps, got {self.after}')
        for entry, period in self.moments.items():
            if period < 1 or period % self.every:
                raise ValueError(
                    f'moments[{entry!r}] must be a multiple of every = {self.every} inner steps, '
                    f'got {period}'
                )

    def _periods(self) -> dict[str, str]:
        """Return what ranks must have alike of the periods: name → text."""
        return {
            'local steps between outer steps': str(self.every),
            'first steps that each end with an outer step': str(self.after),
            'local steps between averages of moments': str(sorted(self.moments.items())),
        }

    def _rounds(self, steps: int) -> int:
        """Return the number of rounds that have ended after so many inner steps."""
        return min(steps, self.after) + max(steps - self.after, 0) // self.every

    def _regroup(self) -> None:
        """Use the optimizers' groups and state, which loading replaces by new objects."""
        self._use(self.inner)
        regroup(self.reducer.buckets, self.outer)

    def detach(self) -> None:
        """Remove the hooks from both optimizers, to wrap them again. A second call does nothing."""
        if not self._handles:
            return
        self.reducer.release()
        while self._handles:
            self._handles.pop().remove()
        self._inner_guard.remove()
        self._outer_guard.remove()
        forget_memory(self.outer)
        release(self, self._wrapped)

    # A GradScaler then calls ``step()`` after an overflow, too, so that the step is counted.
    _step_supports_amp_scaling = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one inner step and, after every H of them, the outer step.

        Returns:
            The closure's loss.

        Raises:
            NonFiniteGradientError: On all ranks, where a rank's movement is not finite; the model
                then holds θ_s.
        """
        with called_by_scaler(self):
            with self._inner_guard.opened():
                loss = step_scaled(self, self.inner, closure)
            self.steps += 1
            self.reducer.count_local_step()
            self._exchange()
        return loss

    def _exchange(self) -> None:
        """Take the outer step, and average the moments, where this step ends a round."""
        if self._rounds(self.steps) > self._rounds(self.steps - 1):
            self.synchronize()
            for entry, period in self.moments.items():
                if (self.steps - self.after) % period == 0:
                    self._average(entry)

    def _average(self, entry: str) -> None:
        """Average an entry of the inner optimizer's state over the ranks. A collective.

        A rank that has none for a parameter, which had no gradient there yet, counts as zero.

        Raises:
            ValueError: Where the inner optimizer keeps no such tensor for any parameter.
        """
        members = self.source.members
        states = [self.inner.state.get(member.parameter, {}) for member in members]
        if any(states) and not any(entry in state for state in states):
            kept = sorted({name for state in states for name in state})
            raise ValueError(f'the inner optimizer keeps no {entry!r}, as in moments, but {kept}')
        tensors = [
            state[entry] if entry in state else torch.zeros_like(member.parameter)
            for state, member in zip(states, members, strict=True)
        ]
        for tensor, mean in zip(tensors, self._mean_of(tensors), strict=True):
            tensor.copy_(mean)

    def _mean_of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the means of tensors over the ranks, uncompressed, in float32. A collective."""
        flat = torch.cat([tensor.detach().float().reshape(-1) for tensor in tensors])
        before = replace(self.engine.traffic)
        mean = self.engine.all_reduce(flat).div_(self.engine.size)
        self.progress.count(before, self.engine.traffic)
        parts = mean.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def synchronize(self) -> bool:
        """Average the movement since the last outer step, and take the outer step. A collective.

        Returns:
            False where all ranks skip it, since a movement was not finite; they then go on from
            θ_s.
        """
        self._set_densities(self.reducer)
        check_present_momentum(self.outer, self.composition)
        check_trained(self.inner, self._wrapped, self._names)
        self.source.finish()
        try:
            usable = self.reducer.synchronize()
            if usable:
                with self._outer_guard.opened(), self.reducer.applying():
                    self.outer.step()
            else:
                self._reset_inner()
        finally:
            for bucket in self.reducer.buckets:
                bucket.zero()
        self.source.begin()
        return usable

    def _set_densities(self, reducer: Reducer) -> None:
        """Set the density of the round that this step ends, or lies in."""
        reducer.set_densities(self._rounds(max(self.steps - 1, 0)), self._rounds_per_epoch)

    def _reset_inner(self) -> None:
        """Discard the inner optimizer's state where it is not finite on this rank: from θ_s, its
        momentum would make every later movement non-finite too."""
        for held in self.inner.state.values():
            tensors = (t for t in held.values() if isinstance(t, Tensor) and t.is_floating_point())
            if not all(bool(tensor.isfinite().all()) for tensor in tensors):
                self.inner.state.clear()
                return

    @property
    def _within_round(self) -> int:
        """Inner steps since the last round ended."""
        return 0 if self.steps < self.after else (self.steps - self.after) % self.every

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        """Return a context in which the model holds θ_s, which is the same on all ranks."""
        members = self.source.members
        with torch.no_grad():
            local = [member.parameter.detach().clone() for member in members]
            for member in members:
                member.parameter.copy_(self.source.agreed[member.name])
        try:
            yield
        finally:
            with torch.no_grad():
                for member, values in zip(members, local, strict=True):
                    member.parameter.copy_(values)

    def state_dict(self) -> dict[str, Any]:
        """Return both optimizers' states, θ_s, and the state of the composition's parts.

        May be called between two outer steps. θ itself is in the model's state.
        """
        return {
            'optimizer': self.inner.state_dict(),
            'outer': self.outer.state_dict(),
            'outer_settings': self._outer_settings.state_dict(),
            'agreed': {name: values.clone() for name, values in self.source.agreed.items()},
            **labelled(self.reducer.state_dict(), self.engine.rank),
            'steps': self.steps,
            'rank': self.engine.rank,
            'size': self.engine.size,
        }

    def gather_state_dict(self) -> dict[str, Any]:
        """Return the state with the residuals of all ranks, for one file and any later world size.
        A collective.

        Between two outer steps it has this rank's inner optimizer and step, from which this rank
        alone goes on within the round.
        """
        own = self.state_dict()
        device = self.reducer.buckets[0].device
        return {**own, **join_ranks(gather_states(self.engine, {'ranks': own['ranks']}, device))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict()`` or ``gather_state_dict()`` returned.

        The model's state must be loaded before.

        Where another rank or another number of ranks saved it, the model goes on from θ_s: the
        local steps since then belong to that rank. At another number of ranks, all of them begin
        that round again. Residuals are loaded by ``dgc.saved_state.share_of``.

        Raises:
            ValueError: For the states of some of the ranks of another world size.
        """
        share = share_of(state_dict, self.engine.rank, self.engine.size)
        self.reducer.load_state_dict(share)
        self.inner.load_state_dict(state_dict['optimizer'])
        self._outer_settings.load_state_dict(state_dict['outer'], state_dict.get('outer_settings'))
        for name, values in state_dict['agreed'].items():
            self.source.agreed[name].copy_(values)
        self.steps = int(state_dict['steps'])
        if state_dict['size'] != self.engine.size:  # else rank 0 goes on within the round
            self.steps -= self._within_round
        if (state_dict['rank'], state_dict['size']) != (self.engine.rank, self.engine.size):
            self._begin_again()

    def _begin_again(self) -> None:
        """Go on from θ_s, without the local steps of another rank since then."""
        with torch.no_grad():
            for member in self.source.members:
                member.parameter.copy_(self.source.agreed[member.name])
