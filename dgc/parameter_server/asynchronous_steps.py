"""A learner of asynchronous DiLoCo: local steps, whose movement is pushed fragment by fragment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.nonfinite import NonFiniteGradientError, finite
from dgc.ownership import Guard, check_free, release, take
from dgc.parameter_server import protocol
from dgc.parameter_server.composition import Asynchronous
from dgc.parameter_server.outer_server import agreement, for_movements, moved_by
from dgc.parameter_server.protocol import Kind
from dgc.parameter_server.rounds import Rounds, places_of
from dgc.parameter_server.settings import ServerError
from dgc.parameter_server.worker import Link, WorkerOptimizer
from dgc.scaling import called_by_scaler, step_scaled
from dgc.sources import check_inner, check_trained
from dgc.wiring import Named


class AsynchronousSteps(WorkerOptimizer):
    """Local steps of one learner, and outer steps on a server that waits for none (DiLoCo).

        inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
        link = SocketLink(Address('127.0.0.1', 5555))
        optimizer = AsynchronousSteps(inner, model.named_parameters(), model.buffers(),
                                      async_diloco(), link, Rounds(every=30))
        while not optimizer.finished:
            …
            optimizer.step()
        optimizer.close()

    Of each fragment of the model, from the parameters θ_w that the server sent last:

        every H steps   Δ = θ' - θ, where θ' are the parameters at the push before, or θ_w; push Δ,
                        and go on from θ
        when the round has ended, to which Δ was pushed, or the reply has newer parameters
                        θ_w ← those of the server,  θ ← θ_w - (θ' - θ): what has not been pushed
                        remains, and what has been pushed is part of θ_w, or of an open round

    A step never waits for another learner: it asks the server, which replies at once. After a
    connection was lost, too, what has not been pushed remains. The inner optimizer's state stays
    here. Three copies of the parameters are kept: θ_w, θ', and Δ; a residual is one more.

    It shares ``param_groups`` and ``state`` with ``inner``, so learning rate schedulers work on it.

    Args:
        inner: Takes local steps, at the learning rate of one worker; any optimizer of torch.
        named_parameters, buffers, link, configuration: As of WorkerOptimizer.
        composition: What movements and answers go through, as the server has it.
        rounds: As the server has it; ``every`` may differ, for a learner that is slow.
        samples_per_step: Samples or tokens of a step, by which the server weighs a movement. A
            loop whose batches differ sets the attribute of this name before ``step()``.

    Attributes:
        rounds: The settings.
        is_waiting: By fragment, whether something is pushed whose round has not ended.

    Raises:
        TypeError, ValueError: For settings with which this is impossible.
        ServerError: If the server cannot be reached or refuses this worker.
    """

    # A GradScaler then calls ``step()`` after an overflow, too, so that the step is counted.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        inner: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]],
        buffers: Iterable[Tensor],
        composition: Asynchronous,
        link: Link,
        rounds: Rounds,
        configuration: str = '',
        samples_per_step: int = 1,
    ) -> None:
        check_inner(inner)
        self.inner, self.rounds, self.samples_per_step = inner, rounds, samples_per_step
        self.is_waiting = [False] * rounds.fragments
        self._agreed: list[Tensor] = []  # θ_w, by bucket
        self._start: list[Tensor] = []  # θ'
        self._bases = [0] * rounds.fragments  # the rounds whose parameters θ_w has
        self._samples = [0] * rounds.fragments  # since the last push
        self._local_steps = 0
        self._fragment = 0  # of which an answer is expected
        self._bytes_at_join = rounds.fragments * protocol.NUMBER.size
        super().__init__(
            inner,
            named_parameters,
            buffers,
            for_movements(composition, rounds),
            link,
            configuration,
        )
        self.state = inner.state
        self._guard = Guard(inner, self)
        take(self, self._names)

    def _trained(
        self, composition: Asynchronous, settings: Optimizer, named: list[tuple[str, Parameter]]
    ) -> list[Named]:
        moved = moved_by(composition, settings, named)
        check_free((name, parameter) for name, parameter, _ in moved)
        return moved

    def _agreement(self) -> str:
        return agreement(self.rounds, [bucket.numel for bucket in self.buckets])

    @property
    def steps(self) -> int:
        """Steps of one worker that the server's progress amounts to (see WorkerOptimizer), and its
        own ones since its last push; at most those of all pushes."""
        period, slots = self.rounds.period, self.budget.worker_slots
        own = self._local_steps % period
        return min(self.version * period // slots + own, self.budget.updates * period // slots)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one inner step; push, or look for what has changed, where it is time.

        Returns:
            The closure's loss.

        Raises:
            NonFiniteGradientError: If a movement holds a NaN or infinity; it is not sent.
            ServerError: If the server is gone for longer than ``patience``.
        """
        if self.finished:
            return None if closure is None else torch.enable_grad()(closure)()
        with called_by_scaler(self), self._guard.opened():
            loss = step_scaled(self, self.inner, closure)
        self._local_steps += 1
        self._samples = [count + self.samples_per_step for count in self._samples]
        turn, rest = divmod(self._local_steps, self.rounds.period)
        if not rest:
            self.push((turn - 1) % self.rounds.fragments)
        elif self._local_steps % self.rounds.pull_every == 0:
            self.pull()
        self._count_step()
        return loss

    @torch.no_grad()
    def push(self, fragment: int) -> None:
        """Push the movement of a fragment since its last push; nothing without steps since.

        Raises:
            NonFiniteGradientError, ServerError: As ``step``.
        """
        if not self._samples[fragment] or self.finished:
            return
        start = time.perf_counter()
        check_trained(self.inner, self._names, self._names)
        head = fragment, self._samples[fragment], self._bases[fragment]
        self._take_movement(fragment)
        parts = [self._compress(self.buckets[place]) for place in self._places[fragment]]
        self._samples[fragment], self._fragment = 0, fragment
        self.is_waiting[fragment] = True
        self.progress.compress += time.perf_counter() - start
        self._push(protocol.MOVEMENT.pack(*head) + b''.join(parts))
        self.progress.wait += time.perf_counter() - start

    @torch.no_grad()
    def pull(self) -> None:
        """Get what has changed of the fragments that wait for the end of a round.

        Raises:
            ServerError: As ``step``.
        """
        start = time.perf_counter()
        for fragment in range(self.rounds.fragments):
            if not self.is_waiting[fragment] or self.finished:
                continue
            reply = self._request(Kind.PULL, protocol.NUMBER.pack(fragment))
            if reply.kind is Kind.REJOIN:
                self._join()
            elif reply.kind in (Kind.ANSWER, Kind.PENDING):
                self.version, self._fragment = reply.version, fragment
                if reply.kind is Kind.ANSWER:
                    self._apply(reply.body)
            else:
                self._server_finished = True
        self.progress.communicate += time.perf_counter() - start
        self.progress.wait += time.perf_counter() - start

    def detach(self) -> None:
        """Let ``inner`` step by itself, and other wrappers have the parameters."""
        self._guard.remove()
        release(self, self._names)

    def close(self) -> None:
        """See ``WorkerOptimizer.close``. Movement that was not pushed is dropped."""
        self.detach()
        super().close()

    def _take_movement(self, fragment: int) -> None:
        """Write the movement of a fragment to its buckets, and begin the next one."""
        places = self._places[fragment]
        for place in places:
            bucket = self.buckets[place]
            movement = torch.sub(self._start[place], self.flats[place], out=bucket.gradient)
            if not finite(movement):
                bad = [name for name, part in bucket.views(movement) if not finite(part)]
                raise NonFiniteGradientError(
                    f'worker {self.slot}: not finite: movement of {", ".join(bad)}'
                )
        for place in places:
            self._start[place].copy_(self.flats[place])

    def _begin(self, model: bytes | memoryview, own: bytes | memoryview) -> None:
        """Take over the server's model: what has not been pushed since remains."""
        if not self._agreed:
            self._agreed = [flat.clone() for flat in self.flats]
            self._start = [flat.clone() for flat in self.flats]
            names = list(self._names.values())
            held = [bucket.spec.names for bucket in self.buckets]
            self._places = places_of(self.rounds.fragments, names, held)
        self._apply_to(self._agreed, model)
        for place in range(len(self.flats)):
            self._go_on(place)
        self._bases = [number for (number,) in protocol.NUMBER.iter_unpack(own)]
        self.is_waiting = [False] * self.rounds.fragments

    def _apply(self, body: bytes | memoryview) -> None:
        """Apply an answer, which is of ``_fragment``."""
        if len(body) < protocol.ROUND.size:
            raise ServerError(f'the server sent an invalid answer: {len(body)} bytes')
        number, is_open = protocol.ROUND.unpack_from(body)
        places = self._places[self._fragment]
        self._apply_to([self._agreed[place] for place in places], body[protocol.ROUND.size :])
        for place in places:
            self._go_on(place)
        self._bases[self._fragment], self.is_waiting[self._fragment] = number, bool(is_open)

    def _go_on(self, place: int) -> None:
        """Compute ``θ ← θ_w - (θ' - θ)`` and ``θ' ← θ_w`` in one bucket."""
        flat, start, agreed = self.flats[place], self._start[place], self._agreed[place]
        torch.sub(agreed, start.sub_(flat), out=flat)
        start.copy_(agreed)
