"""A DistributedOptimizer whose workers may die, stall and join between its steps."""

from __future__ import annotations

import copy
import io
import logging
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.composition import Composition
from dgc.elastic.backup import Copy, exchange_copies
from dgc.elastic.resize import convert, gather_slices, norm, residuals, sums
from dgc.engines.base import EngineError, LostError
from dgc.engines.local import LocalEngine
from dgc.engines.torchft_engine import Note, TorchftEngine
from dgc.handshake import describe_parameters
from dgc.nonfinite import NonFiniteGradientError
from dgc.optim.closures import needs_closure
from dgc.optimizer import DistributedOptimizer
from dgc.saved_state import state_of_wrapped, without_residuals

log = logging.getLogger('dgc')

MOST_CHECKED = 8  # workers with which an exchange is tried
STEPS_BETWEEN_NOTES = 10  # a norm reads all residuals
SHORT_WAIT = 0.2  # seconds between two looks for more workers before the first step


class Progress(Protocol):
    """What the training loop has beside the optimizer's state: how far it is, buffers, …"""

    def state_dict(self) -> dict[str, Any]:
        """Return it: tensors, numbers, strings, lists and dictionaries."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what another worker's ``state_dict()`` returned."""


class NoProgress:
    """A loop that counts by ``optimizer.steps``."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Change:
    """A change of the workers that take part.

    Attributes:
        before, members: Ids of the workers before and now; none before a worker's first step.
        healed: Those that have taken the state of another one.
        lost: Each worker that is gone, with what it published last.
        recovered: Those of them whose residual another worker has a copy of.
        keeps: Whether this worker is among them and has kept its own residual, since it had been
            one of the others before.
        seconds: That this worker has taken for it, from the first call that failed on.
    """

    before: tuple[str, ...]
    members: tuple[str, ...]
    healed: tuple[str, ...]
    lost: dict[str, Note]
    recovered: tuple[str, ...]
    keeps: bool
    seconds: float

    def __str__(self) -> str:
        count = len(self.members)
        joined = f'one of {count} workers' if count > 1 else 'the only worker so far'
        parts = [f'{len(self.before)} → {count} workers' if self.before else joined]
        for worker, note in self.lost.items():
            share = ''
            if note.gradient:
                size = len(self.before)
                share = (
                    f', which is {note.residual / size / note.gradient:.2g} times the mean '
                    'gradient in the mean'
                )
            is_copied = worker in self.recovered
            what = 'of which a copy is used' if is_copied else f'norm {note.residual:.3g}{share}'
            parts.append(f'lost {name_of(worker)} and its residual ({what})')
        if self.healed and (self.before or len(self.healed) < count):
            parts.append(f'{", ".join(map(name_of, self.healed))} took the state of the others')
        if self.keeps:
            parts.append('this one kept its own residual')
        return '; '.join(parts)


def name_of(worker: str) -> str:
    """Return a worker's name, without what differs between its processes."""
    return worker.rpartition(':')[0]


class ElasticOptimizer(DistributedOptimizer):
    """``optimizer`` on the mean gradient of the workers that are there.

        engine = TorchftEngine(ElasticSettings('127.0.0.1:29510'))
        optimizer = ElasticOptimizer(optimizer, model.named_parameters(), composition, engine)
        while optimizer.steps < 1000:
            optimizer.begin()      # workers join here; rank and world size may change
            loss.backward()
            optimizer.step()       # optimizer.committed: whether it was applied

    A step in which an error was seen is applied on no worker, and all state is as before it: the
    loop repeats it with the workers that are left. A worker that joins takes parameters, optimizer
    state, steps and ``progress`` from another one, and starts with an empty residual. One that was
    dropped and comes back does the same, and keeps the residual that it had.

    Args:
        optimizer, named_parameters, composition: As in DistributedOptimizer. The composition's
            state is copied in each step, as with ``nonfinite='skip'``.
        engine: Of this optimizer alone.
        progress: What a worker that joins needs beside it. Loaded before ``on_change`` is called.
        on_change: Called after each change of the workers, before the next step.

    Attributes:
        committed: Whether the last step was applied.
        lost_steps: The steps that were not.
        changes: All changes so far.

    Raises:
        ValueError: Where the composition needs a fixed number of workers, or a timed plan.
    """

    engine: TorchftEngine

    def __init__(
        self,
        optimizer: Optimizer,
        named_parameters: Iterable[tuple[str, Parameter]],
        composition: Composition,
        engine: TorchftEngine,
        batches_per_step: int = 1,
        steps_per_epoch: int | None = None,
        progress: Progress | None = None,
        on_change: Callable[[Change], None] | None = None,
    ) -> None:
        check_elastic(optimizer, composition)
        self._stops = composition.nonfinite == 'stop'
        named = list(named_parameters)
        super().__init__(
            optimizer,
            named,
            replace(composition, nonfinite='skip'),
            engine,
            batches_per_step=batches_per_step,
            steps_per_epoch=steps_per_epoch,
        )
        self.committed = False
        self.lost_steps = 0
        self.changes: list[Change] = []
        self._named = named
        self._progress = NoProgress() if progress is None else progress
        self._on_change = on_change
        self._size = 1  # of the world that the state is for
        self._members: tuple[str, ...] = ()  # at the last change
        self._waits_with: tuple[str, ...] = ()  # before the first step
        self._healed: set[str] = set()  # since the last change
        self._keeps = False  # this worker's residual, although it is among them
        self._copy: Copy | None = None
        self._copied_at = -1
        self._note = Note()
        self._made = time.monotonic()
        self._since: float | None = None  # when a call failed that is not made good yet
        engine.note = self._publish
        aspects = describe_parameters(named, '') | composition.fingerprint(None)
        engine.trains += f'{aspects} {type(optimizer).__name__}'

    def begin(self) -> None:
        """Take in the workers that want to join, and go on without those that are gone.

        Raises:
            EngineError: Where this worker trains something else than the others, or has waited too
                long for a lighthouse.
        """
        engine = self.engine
        while True:
            try:
                if engine.is_broken:
                    self._since = self._since or time.monotonic()
                    engine.reform()
                if engine.poll_due:
                    engine.poll()
                # State is converted for the number of workers once, when all are there.
                if engine.is_starting and engine.size < engine.settings.start_workers:
                    self._wait_for_more()
                    continue
                if not engine.is_settled:
                    self._settle()
                self._back_up()
                return
            except LostError as error:
                log.info('%s', error)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the mean gradient, or nothing where a worker is gone: see ``committed``.

        Raises:
            NonFiniteGradientError: Where a gradient is not finite, on all workers, unless the
                composition says to skip.
        """
        steps, self.committed = self.steps, False
        try:
            loss = super().step(closure)
        except LostError as error:
            self._since = self._since or time.monotonic()
            self.lost_steps += 1
            log.warning('step %d is not applied: %s', steps, error)
            return None
        self.committed = True
        return loss

    def _exchange(self) -> bool:
        """As in DistributedOptimizer. Raises LostError where the step is applied on no worker."""
        usable = super()._exchange()
        if not usable and self._stops:
            raise NonFiniteGradientError('a gradient is not finite on a worker', self.engine.rank)
        return usable

    def average(self, tensors: Iterable[Tensor]) -> bool:
        """Overwrite floating-point tensors with their mean over the workers, as one more step.

        Returns:
            Whether all workers have done so; else it is to be repeated after ``begin()``.
        """
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        try:
            means: list[Tensor] = []
            if floating:
                flat = torch.cat([tensor.detach().float().reshape(-1) for tensor in floating])
                size = self.engine.size
                mean = self.engine.all_reduce(flat).div_(size)
                means = list(mean.split([tensor.numel() for tensor in floating]))
            self.engine.confirm()
        except LostError as error:
            self._since = self._since or time.monotonic()
            log.info('%s', error)
            return False
        for tensor, mean in zip(floating, means, strict=True):
            with torch.no_grad():
                tensor.copy_(mean.view(tensor.shape))
        return True

    # ------------------------------------------------------------ what is published

    def _publish(self) -> Note:
        """Return the norms of this worker's residual and of the mean gradient, some steps old."""
        if self.steps % STEPS_BETWEEN_NOTES == 0:
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            found = [g.to_dense() if g.is_sparse else g for g in gradients]
            self._note = Note(norm(residuals(self.buckets)), norm(found))
        return self._note

    def _wait_for_more(self) -> None:
        """Ask for more workers before the first step. Raises LostError, and EngineError at last."""
        settings, members = self.engine.settings, self.engine.members
        if members != self._waits_with:
            self._waits_with = members
            there = f'{len(members)} of {settings.start_workers} workers are there'
            log.warning('%s: %s', name_of(self.engine.worker), there)
        if time.monotonic() - self._made > settings.start_seconds:
            raise EngineError(
                f'{self.engine.size} of {settings.start_workers} workers have come in '
                f'{settings.start_seconds:g} s (configs.elastic.start_seconds): start the others, '
                'or set configs.elastic.start_workers; where they have ended, so has the training'
            )
        time.sleep(SHORT_WAIT)
        self.engine.poll()

    def _back_up(self) -> None:
        """Renew the copy of another worker's residual where it is time to. A collective."""
        every = self.engine.settings.residual_backup
        number = self.engine.committed // every if every else -1
        if number != self._copied_at:
            self._copy = exchange_copies(self.buckets, self.engine)
            self._copied_at = number

    # ------------------------------------------------------------ changes

    def _settle(self) -> None:
        """Bring all members to the same state, for their number. A collective.

        It may fail at any place, on some workers and not on others: what was done then is not
        undone, and the next one goes on from there. So each worker knows for which world its own
        state is.
        """
        engine = self.engine
        self._since = self._since or time.monotonic()
        before = self._members
        behind = {engine.members[rank] for rank in engine.behind}
        content = engine.heal(self._dump)
        # Where copies are made, another worker may have taken over what this one had not sent.
        keeps = content is not None and engine.was_one and not engine.settings.residual_backup
        if content is not None:
            self._load(content, keeps)
            for bucket in self.buckets:
                bucket.state.disown()
        self._healed, self._keeps = self._healed | behind, self._keeps or keeps
        self.composition.exchange.check(engine, self.buckets[0].device)
        slices = gather_slices(self.buckets, engine)
        lost_copy = self._copy if self._copy and self._copy.owner not in engine.members else None
        copied = engine.settle(lost_copy.owner if lost_copy else '')
        self.reducer.resize()
        if lost_copy is not None:
            lost_copy.add_to(self.buckets, self._size)
            self._copy = None
        convert(self.buckets, self._size, engine, slices)
        self._size = engine.size
        self._note_change(before, copied)

    def _note_change(self, before: tuple[str, ...], copied: Container[str]) -> None:
        """Record a change that is complete, and tell the training loop of it."""
        engine = self.engine
        lost = {worker: engine.notes.get(worker, Note()) for worker in engine.lost(before)}
        recovered = tuple(worker for worker in lost if worker in copied)
        seconds = time.monotonic() - (self._since or time.monotonic())
        healed = tuple(worker for worker in engine.members if worker in self._healed)
        change = Change(before, engine.members, healed, lost, recovered, self._keeps, seconds)
        self._healed, self._keeps = set(), False
        self._since, self._members = None, engine.members
        self._copied_at = -1
        self.changes.append(change)
        log.warning('%s: %s', name_of(engine.worker), change)
        if self._on_change is not None:
            self._on_change(change)

    def count(self, steps: int, steps_per_epoch: int) -> None:
        """Set the step by which density and learning rate go, where an epoch has another number of
        steps than before. To be called between two steps, alike on all workers."""
        self.steps, self.steps_per_epoch = steps, steps_per_epoch
        self._begin_step()

    def state_dict(self) -> dict[str, Any]:
        """As in DistributedOptimizer, and 'elastic': where this worker stands among the others.

        Each worker saves its own, with its own residual. After all have ended, those that load one
        of the same step go on together; the others take the state of these (``load_state_dict``).
        """
        return {**super().state_dict(), 'elastic': self.engine.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict()`` returned, before the first ``begin()``.

        What counts is what the workers have that ``begin()`` finds. Where some train, this worker
        takes their state, and its residual is empty. Else all take the state with the most steps:
        who has loaded that one keeps its own residual, converted to the number of workers; that of
        others is empty.

        Raises:
            ValueError: As in DistributedOptimizer.
            RuntimeError: After the first ``begin()``.
        """
        if self.changes:
            raise RuntimeError('load_state_dict() of an elastic worker comes before begin()')
        if 'elastic' in state_dict:
            self.engine.load_state_dict(state_dict['elastic'])
            self.reducer.resize()
            self._size = self.engine.size
        super().load_state_dict(state_dict)

    def _dump(self) -> bytes:
        """Return what a worker that joins needs: all that is the same on all workers."""
        state = {
            'parameters': [parameter.detach() for _, parameter in self._named],
            'optimizer': self.optimizer.state_dict(),
            'steps': self.steps,
            'parts': without_residuals(self.reducer.state_dict()),
            'progress': self._progress.state_dict(),
        }
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def _load(self, content: bytes, keeps: bool) -> None:
        """Continue from what another worker's ``_dump`` returned.

        Args:
            content: What it returned.
            keeps: Whether this worker's residuals stay; else they are empty then.
        """
        own = [tensor.clone() for tensor in sums(self.buckets)] if keeps else []
        state = torch.load(io.BytesIO(content), map_location='cpu', weights_only=True)
        with torch.no_grad():
            for (_, parameter), value in zip(self._named, state['parameters'], strict=True):
                parameter.copy_(value)
        self.reducer.load_state_dict(state['parts'])
        for tensor, kept in zip(sums(self.buckets), own, strict=keeps):
            tensor.copy_(kept)
        self.optimizer.load_state_dict(state_of_wrapped(state['optimizer']))
        self.steps = int(state['steps'])
        self._progress.load_state_dict(state['progress'])
        self._copy = None
        self._begin_step()
        self.zero_grad()


class Crowd(LocalEngine):
    """Some workers on machines of their own, for checks only: a gathering repeats one's own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def _all_gather(self, tensor: Tensor) -> Tensor:
        return tensor.expand(self.size, -1)


def check_elastic(optimizer: Optimizer, composition: Composition) -> None:
    """Raise ValueError for what needs a fixed number of workers."""
    if needs_closure(optimizer):
        raise ValueError(
            f'{type(optimizer).__name__} moves the parameters several times in a step, which '
            'cannot be undone where a worker dies: use another optimizer with engine torchft'
        )
    if composition.planner.needs_timing:
        raise ValueError(
            f'the planner {type(composition.planner).__name__} goes by times of a fixed number of '
            'workers: use BySize with engine torchft, or replay a saved plan'
        )
    for size in range(1, MOST_CHECKED + 1):
        try:
            copy.copy(composition.exchange).check(Crowd(size))
        except ValueError as error:
            raise ValueError(
                f'{type(composition.exchange).__name__} cannot serve {size} workers ({error}): '
                'with engine torchft their number changes, so choose settings that serve any'
            ) from error
