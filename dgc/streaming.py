"""Streaming DiLoCo: one fragment of the model travels at a time, while inner steps go on.

Douillard et al., arXiv 2501.18512 (Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.buckets import Bucket, Member
from dgc.composition import Composition
from dgc.engines import Engine
from dgc.local_steps import LocalSteps
from dgc.nonfinite import finite
from dgc.planner import Fragments
from dgc.planner.fragments import strided
from dgc.reducer import Reducer
from dgc.sources import check_trained


class StreamingSteps(LocalSteps):
    """LocalSteps whose model is divided into fragments, each with rounds of its own.

        optimizer = dgc.StreamingSteps(inner, outer, model.named_parameters(), every=30,
                                       fragments=4, delay=5, merge=0.5)

    Layer l belongs to fragment l mod F. Fragment p sends its Δ = θ_s - θ after the inner steps
    t ≡ p·⌊H/F⌋ (mod H); τ inner steps later, its mean is applied:

        θ_s ← outer step from θ_s with the mean Δ,  θ ← α·θ + (1 - α)·θ_s

    Meanwhile the mean travels on the engine's thread. Between its two ends nothing reads or writes
    what the other thread uses: Δ is a copy, and the result is applied in the same step on all
    ranks, so training does not depend on how long the message takes. With τ = 0, α = 0 and one
    fragment it is DiLoCo, bit for bit.

    A fragment is in one of three states:

        idle          no message is under way                     → travelling, when it sends
        travelling    the engine's thread exchanges its Δ         → landed, τ steps later or at
                                                                    ``state_dict()``
        landed        the mean is here and not applied            → idle, τ steps after it was sent

    ``state_dict()`` waits for what travels. A checkpoint has the mean of each fragment that has
    landed, and the steps that remain until it is applied; so does one of another world size.

    Args:
        inner, outer, named_parameters, composition, engine, every, steps_per_epoch, configuration:
            As those of LocalSteps.
        fragments: F.
        delay: τ, less than ``every``.
        merge: α, at least 0 and below 1: how much of θ remains when θ_s is merged into it.

    Raises:
        TypeError, ValueError, HandshakeError: As LocalSteps.
    """

    def __init__(
        self,
        inner: Optimizer,
        outer: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]] | None = None,
        composition: Composition | None = None,
        engine: Engine | None = None,
        every: int = 30,
        fragments: int = 4,
        delay: int = 0,
        merge: float = 0.0,
        steps_per_epoch: int | None = None,
        configuration: str = '',
    ) -> None:
        if not 0 <= delay < every:
            raise ValueError(f'delay must be at least 0 and below every = {every}, got {delay}')
        if not 0 <= merge < 1:
            raise ValueError(f'merge must be at least 0 and below 1, got {merge}')
        self.delay, self.merge, self._count = delay, merge, fragments
        composition = Composition() if composition is None else composition
        super().__init__(
            inner,
            outer,
            named_parameters,
            replace(composition, planner=Fragments(composition.planner, fragments)),
            engine,
            every,
            steps_per_epoch,
            configuration,
        )
        names = [member.name for member in self.source.members]
        places = {name: index for index, name in enumerate(self._names.values())}
        ordered = strided(sorted(names, key=places.__getitem__), fragments)
        self.fragments = [
            Fragment(self._reducer_of(part), index * (every // fragments))
            for index, part in enumerate(ordered)
        ]

    def _reducer_of(self, names: Sequence[str]) -> Reducer:
        """Return a reducer of the buckets of one fragment, which counts in the common progress."""
        buckets = [bucket for bucket in self.reducer.buckets if bucket.spec.names[0] in names]
        reducer = Reducer(buckets, self.composition, self.engine)
        reducer.progress, reducer.counts_steps = self.reducer.progress, False
        for bucket in buckets:
            bucket.publishes = False
        return reducer

    def _periods(self) -> dict[str, str]:
        """Return what ranks must have alike: name → text."""
        own = {'fragments': self._count, 'steps that a fragment travels': self.delay}
        text = {name: str(value) for name, value in own.items()}
        return super()._periods() | text | {'how much of θ is kept': str(self.merge)}

    def _exchange(self) -> None:
        """Apply the fragments that are due, then send those whose round ends."""
        for fragment in self.fragments:
            if fragment.due == self.steps:
                self._apply(fragment)
        for fragment in self.fragments:
            if (self.steps - fragment.offset) % self.every == 0:
                self._send(fragment)

    def _send(self, fragment: Fragment) -> None:
        """Let a fragment travel, and apply it at once where there is no delay."""
        if fragment.due is not None:  # steps were counted anew when a checkpoint was loaded
            self._apply(fragment)
        check_trained(self.inner, self._wrapped, self._names)
        self._set_densities(fragment.reducer)
        fragment.reducer.watchers = self.reducer.watchers
        fragment.reducer.recorder = self.reducer.recorder
        fragment.send(self.source.agreed, self.steps + self.delay)
        if self.delay == 0:
            self._apply(fragment)

    def _apply(self, fragment: Fragment) -> bool:
        """Take the outer step on a fragment with the mean that has come, and merge.

        Returns:
            False where all ranks skip it, since a movement was not finite.

        Raises:
            NonFiniteGradientError, EngineError: The model then holds θ_s.
        """
        landed = self._land(fragment)
        local = {member.name: member.parameter.detach().clone() for member in fragment.members}
        self._restore(fragment.members)
        if landed.usable:
            self._take_outer_step(fragment.members, landed.mean)
            self._merge(fragment.members, local)
        else:
            self._recover()
        self.reducer.skips = 0 if landed.usable else self.reducer.skips + 1
        fragment.reset()
        return landed.usable

    def _land(self, fragment: Fragment) -> Landed:
        """Wait for what travels; where that fails, the model holds θ_s."""
        try:
            return fragment.land()
        except Exception:
            fragment.reset()
            self._restore(self.source.members)
            raise

    def _recover(self) -> None:
        """Go on from θ_s with all fragments where this rank's parameters are not finite: gradients
        of one fragment are computed from the parameters of all. Its inner state likewise."""
        members = self.source.members
        if not finite(*(member.parameter.detach() for member in members)):
            self._restore(members)
        self._reset_inner()

    @torch.no_grad()
    def _restore(self, members: Sequence[Member]) -> None:
        """Set parameters to θ_s."""
        for member in members:
            member.parameter.copy_(self.source.agreed[member.name])

    def _take_outer_step(self, members: Sequence[Member], mean: Mapping[str, Tensor]) -> None:
        """Step ``outer`` on these parameters alone, with ``mean`` in the place of gradients."""
        gradients = {parameter: parameter.grad for parameter in self._wrapped}
        for parameter in self._wrapped:
            parameter.grad = None
        try:
            for member in members:
                member.parameter.grad = mean[member.name]
            with self._outer_guard.opened(), self.reducer.applying():
                self.outer.step()
        finally:
            for parameter, gradient in gradients.items():
                parameter.grad = gradient

    @torch.no_grad()
    def _merge(self, members: Sequence[Member], local: Mapping[str, Tensor]) -> None:
        """Set θ_s to the present parameters, and these to α·θ + (1 - α)·θ_s."""
        for member in members:
            self.source.agreed[member.name].copy_(member.parameter)
            if self.merge:
                member.parameter.lerp_(local[member.name], self.merge)

    def synchronize(self) -> bool:
        """Apply what travels, then send all fragments and apply them at once. A collective.

        Returns:
            False where all ranks skip some fragment, since a movement was not finite.
        """
        waiting = [fragment for fragment in self.fragments if fragment.due is not None]
        usable = [self._apply(fragment) for fragment in waiting]
        for fragment in self.fragments:
            check_trained(self.inner, self._wrapped, self._names)
            self._set_densities(fragment.reducer)
            fragment.send(self.source.agreed, self.steps)
        return all([*usable, *(self._apply(fragment) for fragment in self.fragments)])

    def detach(self) -> None:
        """See ``LocalSteps.detach``; what travels is dropped, on all ranks."""
        for fragment in self.fragments:
            fragment.reset()
        super().detach()

    def state_dict(self) -> dict[str, Any]:
        """See ``LocalSteps.state_dict``; waits for the fragments that travel."""
        travelling = {}
        for index, fragment in enumerate(self.fragments):
            if fragment.due is not None:
                landed = self._land(fragment)
                mean = {name: values.clone() for name, values in landed.mean.items()}
                saved = {'remaining': fragment.due - self.steps, 'usable': landed.usable}
                travelling[str(index)] = {**saved, 'mean': mean}
        fragments = {'count': len(self.fragments), 'travelling': travelling}
        return {**super().state_dict(), 'fragments': fragments}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``LocalSteps.load_state_dict``.

        Raises:
            ValueError: Also where a fragment travels in it and this model has other fragments.
        """
        saved = state_dict.get('fragments', {'count': len(self.fragments), 'travelling': {}})
        if saved['travelling'] and saved['count'] != len(self.fragments):
            raise ValueError(
                f'one of {saved["count"]} fragments was travelling when the state was saved, and '
                f'there are {len(self.fragments)} here: resume with as many, or save after '
                'synchronize()'
            )
        for fragment in self.fragments:
            fragment.reset()
        super().load_state_dict(state_dict)
        for index, held in saved['travelling'].items():
            mean = {name: values.clone() for name, values in held['mean'].items()}
            due = self.steps + int(held['remaining'])
            self.fragments[int(index)].restore(Landed(mean, bool(held['usable'])), due)


class Landed:
    """The result of a fragment's exchange.

    Attributes:
        mean: Name → the mean Δ, in the parameter's shape.
        usable: False where all ranks skip it.
    """

    def __init__(self, mean: Mapping[str, Tensor], usable: bool) -> None:
        self.mean, self.usable = mean, usable


class Fragment:
    """A part of the model that travels by itself; see StreamingSteps for its states.

    Args:
        reducer: Of the fragment's buckets, whose results are not written to ``.grad``.
        offset: The inner step, modulo H, after which it is sent.

    Attributes:
        due: The inner step after which its mean is applied; None where it is idle.
    """

    def __init__(self, reducer: Reducer, offset: int) -> None:
        self.reducer, self.offset = reducer, offset
        self.due: int | None = None
        self._landed: Landed | None = None

    @property
    def members(self) -> list[Member]:
        """The parameters of this fragment."""
        return [member for bucket in self.reducer.buckets for member in bucket.members]

    @torch.no_grad()
    def send(self, agreed: Mapping[str, Tensor], due: int) -> None:
        """Submit Δ, a copy, to the engine's thread.

        Args:
            agreed: Name → θ_s.
            due: The inner step after which the mean is applied.
        """
        for bucket in self.reducer.buckets:
            fill(bucket, agreed)
        self.reducer.start()
        self.due = due

    def land(self) -> Landed:
        """Wait for the exchange, once, and return its result.

        Raises:
            NonFiniteGradientError, EngineError: See ``Reducer.synchronize``.
        """
        if self._landed is None:
            usable = self.reducer.synchronize()
            mean = {
                name: values
                for bucket in self.reducer.buckets
                for name, values in bucket.views(bucket.gradient)
            }
            self._landed = Landed(mean, usable)
        return self._landed

    def restore(self, landed: Landed, due: int) -> None:
        """Become one that has landed and will be applied after inner step ``due``."""
        self._landed, self.due = landed, due

    def reset(self) -> None:
        """Become idle. What travels is waited for and dropped."""
        if self.due is not None and self._landed is None:
            self.reducer.abandon()
        self._landed, self.due = None, None


def fill(bucket: Bucket, agreed: Mapping[str, Tensor]) -> None:
    """Set the gradient of a bucket, in its own storage, to Δ = θ_s - θ."""
    views = dict(bucket.views(bucket.gradient))
    for member in bucket.members:
        torch.sub(agreed[member.name], member.parameter, out=views[member.name])
