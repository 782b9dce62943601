"""Compress each bucket, exchange and decompress it on the engine's thread; write results back."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.composition import Composition
from dgc.compressors import Compressor, Dense
from dgc.corrected import NotFiniteError
from dgc.engines.base import Engine, EngineError, Traffic, no_user
from dgc.exchanges import AllReduce, Context, Exchange, Scale
from dgc.exchanges.base import ring_bytes
from dgc.nonfinite import NonFiniteGradientError, finite, non_finite_message, not_finite
from dgc.progress import Progress
from dgc.saved_state import restore, save
from dgc.scaling import Scaling
from dgc.spans import Phase, Recorder
from dgc.sparse import Sparse, mean_of_contributors


class Fence:
    """The work queued on a device so far, for another thread's stream to wait for.

    Does nothing on a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._event = None
        if device.type == 'cuda':
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))
        self._device = device

    def wait(self) -> None:
        """Make the current stream wait for that work."""
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which products of matrices are computed in float32, also where the
    training loop calls ``backward()`` or ``step()`` inside ``torch.autocast``."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def makes_alone(composition: Composition) -> bool:
    """Return whether a message is made from the gradient without a call of the engine."""
    return type(composition.exchange).prepare is Exchange.prepare


def may_run_beside(composition: Composition, device: torch.device) -> bool:
    """Return whether messages may be made on another thread than the engine's. On a GPU they are
    made on a stream, which does not hold up that thread."""
    return device.type == 'cpu' and makes_alone(composition)


def is_pipelined(composition: Composition, engine: Engine, device: torch.device) -> bool:
    """Return whether a bucket's message is made while the bucket before it is exchanged."""
    return engine.is_pipelined and may_run_beside(composition, device)


def is_finite_mean(bucket: Bucket, result: Sequence[Tensor]) -> bool:
    """Return whether the result of a bucket is finite, sparse or written to ``result``."""
    if bucket.mean is not None:
        return bucket.mean.is_finite
    return finite(*result, *bucket.pieces)


class Message(NamedTuple):
    """What a rank contributes to the exchange of a bucket.

    Attributes:
        selected: This rank's message.
        is_finite: Whether this rank's gradient is.
        seconds: That it took to make.
    """

    selected: Sparse
    is_finite: bool
    seconds: float


class Outcome(NamedTuple):
    """How the processing of a bucket ended.

    Attributes:
        non_finite: Some rank's gradient was not finite; the same on all ranks.
        done: Fence behind the work that wrote the result.
    """

    non_finite: bool
    done: Fence


class Reducer:
    """Processes buckets one after another, in the same fixed order on every rank.

    A bucket is processed in two jobs. ``_compress`` makes this rank's message, without a call of
    the engine. ``_exchange``, on the engine's thread, combines the messages of all ranks and
    updates the memory. Where the engine is pipelined, the next bucket's message is made while this
    bucket is exchanged. The order of the engine's calls, and each bucket's results, are the same in
    either case.

    A bucket is submitted when its gradients are complete. Whatever is incomplete when the step ends
    is sent as it is, which is zero for parameters that took no part; so an unused parameter delays
    the buckets behind it until then.

    With ``nonfinite='skip'``, the state of all parts is copied before a bucket is processed and
    restored on all ranks where any bucket turns out non-finite, or where the engine fails, so that
    a skipped step changes no state. The copy costs 4 bytes per element and state tensor (8 for
    momentum correction), and one more pass over them. Memories with a C++ kernel are not copied:
    they are written anew beside the present ones (``Bucket.renew``), in the same pass, which also
    finds what is not finite. With 'stop' nothing is copied, and gradients are looked at before a
    memory is changed: training goes on from a checkpoint.

    The engine's thread reads gradients and writes no result to them; ``synchronize`` does, so that
    no write of the training loop before that can make the ranks' results differ.

    With ``find_unused``, a parameter that had no gradient on any rank keeps its state, and its
    ``.grad`` becomes None. A rank copies the state of the parameters for which it has no gradient.
    One flag says whether any rank lacks one: it is carried in the last bucket's all-reduce, or is a
    small collective of its own where the last bucket is compressed. Only where it is set are two
    numbers per parameter reduced: the ranks that used it, and the sparse dimensions of their
    gradients, whose layout all ranks give the mean.

    Args:
        buckets: In the order in which they are sent.
        composition: The parts that process them.
        engine: Carries messages.

    Attributes:
        find_unused: Whether to leave parameters alone that no rank used in a step; the same on all
            ranks.
        unused: The names of the parameters that no rank used in the last step.
        scaling: The scale that the results are multiplied by; None for none.
        watchers: Are called on the engine's thread with each bucket and this rank's message, before
            the exchange; by name.
        recorder: Receives when the phases of each bucket ran, for a trace; None for none.
        skips: Exchanges that were skipped since the last one that was not; the same on all ranks.
        counts_steps: Whether an exchange counts as an optimizer step in ``progress``; else its
            owner counts them (``count_local_step``).
    """

    def __init__(self, buckets: Sequence[Bucket], composition: Composition, engine: Engine) -> None:
        self.buckets = buckets
        self.composition = composition
        self.engine = engine
        self.progress = Progress()
        self._uncompressed = (Dense(), AllReduce())
        composition.exchange.check(engine, buckets[0].device if buckets else 'cpu')
        self._ready = [False] * len(buckets)
        self._pending: list[Future[Outcome]] = []
        self._failures: dict[int, list[str]] = defaultdict(list)  # bucket → what was not finite
        # A bucket of this step raised an error while its message was made, or was exchanged.
        self._failed_to_compress = self._failed = False
        self._discards = False  # this rank wants the step to be skipped
        self.find_unused = False
        self.unused: set[str] = set()
        self._layouts: dict[str, int] = {}  # of this step's gradients; see Bucket.follow
        self.scaling: Scaling | None = None
        self.watchers: dict[str, Callable[[Bucket, Sparse], None]] = {}
        self.recorder: Recorder | None = None
        self.skips = 0
        self.counts_steps = True
        self._clipped = False  # the gradients of this step, where that needs all buckets
        self._kept: dict[int, Mapping[str, Sequence[Tensor]]] = {}  # state of what is unused here
        self._size = engine.size
        self._snapshots: dict[int, Mapping[str, Any]] = {}  # the state before this exchange
        self._earlier: dict[int, Mapping[str, Any]] = {}  # before the first one of this step
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def set_densities(self, step: int, steps_per_epoch: int) -> None:
        """Set every bucket's density for optimizer step ``step``, counted from 0."""
        control = self.composition.control
        for bucket in self.buckets:
            schedule = bucket.spec.schedule
            bucket.density = None if schedule is None else schedule.at(step, steps_per_epoch)
            if control is not None and schedule is not None:
                bucket.density = control.density(bucket, bucket.density)

    def ready(self, index: int) -> None:
        """Note that the gradients of bucket ``index`` are complete; submit what can be sent."""
        self._ready[index] = True
        if self.composition.overlaps and not self._waits_for_step(self.buckets[index].device):
            # A rank may still discard the step with what it puts into the last bucket.
            can_discard = self.composition.nonfinite == 'skip' and self.engine.size > 1
            self._submit_in_order(len(self.buckets) - can_discard)

    def _waits_for_step(self, device: torch.device) -> bool:
        """Return whether buckets on ``device`` can be submitted in ``synchronize()`` only."""
        engine, is_gpu = self.engine, device.type == 'cuda'
        # Without a thread of its own an engine blocks the caller. On a GPU that is autograd's
        # thread, which all simulated ranks share, so it would wait for itself.
        if not engine.has_thread:
            return is_gpu or engine.is_shared
        # Two communicators of NCCL may be used at a time only in the same order on all ranks:
        # that of the calls of step(), not that of the gradients.
        return is_gpu and engine.is_shared

    @property
    def has_begun(self) -> bool:
        """Whether the gradients of a bucket of this step are complete."""
        return any(self._ready)

    @property
    def has_failed(self) -> bool:
        """Whether a bucket of this step raised an error."""
        return self._failed or self._failed_to_compress

    @property
    def discards(self) -> bool:
        """Whether this rank discards the step in progress."""
        return self._discards

    def discard(self) -> None:
        """Make all ranks skip the step in progress, by a NaN in this rank's last bucket.

        Raises:
            RuntimeError: Without ``nonfinite='skip'``, which keeps the state before the step.
        """
        if self.composition.nonfinite != 'skip':
            raise RuntimeError(
                "a step can be discarded only with nonfinite='skip' in the composition, which "
                'keeps a copy of the memory as it was before the step'
            )
        self._discards = True

    def begin_step(self) -> None:
        """Release the state before a step whose exchanges were not final."""
        self._earlier = {}

    def synchronize(self, is_final: bool = True) -> bool:
        """Finish an exchange: every bucket's gradients become its result.

        Args:
            is_final: Whether the step ends with it. Else the state before it is kept: where a later
                exchange is skipped that continues this one (``Bucket.continued``), that state is
                restored.

        Returns:
            False where all ranks skip the step.

        Raises:
            NonFiniteGradientError: On all ranks, where a gradient held an infinity or a NaN and the
                composition says to stop.
        """
        start = time.perf_counter()
        self._check_size()
        try:
            self.start()
            outcomes = [
                self._published(bucket, future)
                for bucket, future in zip(self.buckets, self._pending, strict=True)
            ]
            # Also in the middle of a step: whether an exchange ends it may not be known, and the
            # ranks agree on exchanges. A decision is undone with the exchange.
            if not any(outcome.non_finite for outcome in outcomes):
                self._control()
            self.engine.confirm()
        except Exception:  # the engine failed, perhaps since another rank is gone
            self.abandon()
            raise
        self._pending = []
        self._ready = [False] * len(self.buckets)
        self._clipped = False
        self.progress.wait += time.perf_counter() - start
        self.progress.steps += self.counts_steps
        usable = not (self._discards or any(outcome.non_finite for outcome in outcomes))
        self.skips = 0 if usable else self.skips + 1
        if not usable:
            self._roll_back()
            for bucket in self.buckets:  # so that .grad shows what was not finite
                if bucket.mean is not None and bucket.hands_over:
                    bucket.write()
        self._release(usable and not is_final)
        if not usable and self.composition.nonfinite == 'stop':
            raise self._non_finite(outcomes)
        self._failures.clear()
        self._discards = False
        if usable:
            self._leave_unused()
            if self._layouts:
                for bucket in self.buckets:
                    bucket.follow(self._layouts)
            for bucket in self.buckets:
                self.composition.memory.commit(bucket)
        self._kept.clear()
        return usable

    def _control(self) -> None:
        """Let the control choose densities; its bytes count. A collective, where it decides."""
        control, progress = self.composition.control, self.progress
        if control is None:
            return
        before = replace(self.engine.traffic)
        control.decide(self.buckets, self.engine, self.composition.volume)
        progress.count(before, self.engine.traffic)

    def start(self) -> None:
        """Submit all buckets, and return while they are sent; ``synchronize`` waits for them.

        Where the engine has no thread of its own, they are sent first.

        Raises:
            RuntimeError: Where the number of ranks has changed.
        """
        self._check_size()
        self._ready = [True] * len(self.buckets)
        clipping = self.composition.clipping
        if clipping is not None and not self.composition.overlaps and not self._clipped:
            clipping.clip(self.buckets, self.engine)
            self._clipped = True
        self._submit_in_order(len(self.buckets))

    def _check_size(self) -> None:
        """Raise RuntimeError where the number of ranks has changed."""
        if self.engine.size != self._size:
            raise RuntimeError(
                f'the number of ranks changed from {self._size} to {self.engine.size}: merge the '
                "ranks' states (dgc.saved_state.merge_states) into a new optimizer"
            )

    def applying(self) -> AbstractContextManager[None]:
        """Return the context of the optimizer's step on the results, which a trace records."""
        return nullcontext() if self.recorder is None else self._recorded_apply(self.recorder)

    @contextmanager
    def _recorded_apply(self, recorder: Recorder) -> Iterator[None]:
        """See ``applying``."""
        start = time.perf_counter()
        yield
        recorder.add(Phase.APPLY, '', start, self.buckets[0].device)

    def _published(self, bucket: Bucket, future: Future[Outcome]) -> Outcome:
        """Wait for a bucket, and write its result to ``.grad`` while the next is processed."""
        start = time.perf_counter()
        outcome = future.result()
        outcome.done.wait()
        arrived = time.perf_counter()
        bucket.publish()
        if self.recorder is not None:
            self.recorder.add(Phase.WAIT, bucket.name, start, end=arrived)
            self.recorder.add(Phase.COPY, bucket.name, arrived, bucket.device)
        return outcome

    def _leave_unused(self) -> None:
        """Undo the step for the parameters that no rank used: state and ``.grad``."""
        for index, copies in self._kept.items():
            bucket = self.buckets[index]
            unused = {name: saved for name, saved in copies.items() if name in self.unused}
            bucket.state.put_back(unused)
            for member in bucket.members:
                if member.name in unused and bucket.publishes:
                    member.parameter.grad = None

    def count_local_step(self) -> None:
        """Count an optimizer step without an exchange, in which dense training would have sent."""
        _, all_reduce = self._uncompressed
        self.progress.steps += 1
        for bucket in self.buckets:
            arguments = bucket.spec, bucket.numel, self.composition.codec, self.engine.size
            self.progress.dense_sent += round(all_reduce.bytes_sent(*arguments))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that this rank's parts keep between steps (``dgc.saved_state``)."""
        states = [bucket.state for bucket in self.buckets]
        saved = save(states, self.composition.meaning)
        return {**saved, 'world_size': self.engine.size}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what ``state_dict()`` returned, for any division into buckets.

        Raises:
            ValueError: Where this composition has no memory for a saved residual or momentum, or
                would take it for something else.
        """
        self.abandon()
        states = [bucket.state for bucket in self.buckets]
        restore(states, state_dict, self.engine.size, self.composition.meaning)

    def resize(self) -> None:
        """Go on with the engine's present rank and world size, between two steps.

        The state of the parts must have been converted to it (``dgc.elastic``).
        """
        self._size = self.engine.size
        for bucket in self.buckets:
            bucket.resize(self.engine.rank, self.engine.size)

    def release(self) -> None:
        """Leave the engine to another reducer. To be called on all ranks, between two steps."""
        self.engine.user = no_user

    def abandon(self) -> None:
        """Wait for the buckets of an unfinished step, and undo the step."""
        wait(self._pending)
        self.engine.drain()
        for device, stream in self._streams.items():
            # What was queued may still read and write the state that is restored below.
            torch.cuda.current_stream(device).wait_stream(stream)
        self._pending = []
        self._ready = [False] * len(self.buckets)
        self._failures.clear()
        self._failed_to_compress = self._failed = self._discards = self._clipped = False
        self._roll_back()
        self._release(goes_on=False)
        self._kept.clear()

    def _roll_back(self) -> None:
        """Restore the state of all parts to that before the step, where it was copied."""
        earlier = self._earlier if self._continues else {}
        for index, snapshot in (self._snapshots | earlier).items():
            self.buckets[index].state.roll_back(snapshot)

    @property
    def _continues(self) -> bool:
        """Whether the exchange continues the last one's step."""
        return any(bucket.continued for bucket in self.buckets)

    def _release(self, goes_on: bool) -> None:
        """Release what was copied of the state, but for that before the step, if it goes on."""
        if not goes_on:
            self._earlier = {}
        elif not self._continues:
            self._earlier = self._snapshots
        self._snapshots = {}

    def _submit_in_order(self, limit: int) -> None:
        """Submit the next buckets that are ready, up to ``limit`` buckets in this step."""
        first = last = len(self._pending)
        while last < limit and self._ready[last]:
            last += 1
        # All messages first: an engine without a thread exchanges a bucket when it is submitted.
        jobs = [partial(self._run, index, self._start(index)) for index in range(first, last)]
        for job in jobs:
            self._pending.append(self.engine.submit(job))

    def _start(self, index: int) -> Callable[[], Message]:
        """Return a function that waits for a bucket's message, or makes it."""
        device = self.buckets[index].device
        job = partial(self._compress, index, Fence(device))
        return self.engine.beside(job) if may_run_beside(self.composition, device) else job

    def _run(self, index: int, make: Callable[[], Message]) -> Outcome:
        """Exchange one bucket, on the engine's thread and a stream beside the backward pass's."""
        if self._failed:
            # Its collectives would pair with those of another bucket on other ranks, and wait.
            raise EngineError('an earlier bucket of this step failed')
        bucket = self.buckets[index]
        self.engine.bucket = bucket.name
        try:
            with self._stream(bucket.device), without_autocast(bucket.device):
                before = replace(self.engine.traffic)
                message, start = make(), time.perf_counter()
                outcome = self._exchange(index, message, before)
                if self.recorder is not None:
                    self.recorder.add(Phase.EXCHANGE, bucket.name, start, bucket.device)
                return outcome
        except BaseException:
            self._failed = True
            raise
        finally:
            self.engine.bucket = ''

    def _compress(self, index: int, gradients_complete: Fence) -> Message:
        """Make this rank's message: clip, transform, add to the residual, select."""
        if self._failed or self._failed_to_compress:
            raise EngineError('an earlier bucket of this step failed')
        start, bucket = time.perf_counter(), self.buckets[index]
        try:
            with self._stream(bucket.device), without_autocast(bucket.device):
                gradients_complete.wait()
                bucket.renews = self._renews
                if self.composition.nonfinite == 'skip':
                    renewed = self.composition.memory.renewed(bucket)
                    self._snapshots[index] = bucket.state.snapshot(renewed)
                compressor, _, _ = self._route(bucket)
                selected, is_finite = self._select(index, compressor)
                if self.recorder is not None:
                    self.recorder.add(Phase.COMPRESS, bucket.name, start, bucket.device)
                return Message(selected, is_finite, time.perf_counter() - start)
        except BaseException:
            self._failed_to_compress = True
            raise

    def _stream(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context in which GPU work is queued on the reducer's own stream."""
        if device.type != 'cuda':  # torch.cuda.stream(None) would look for a GPU at each call
            return nullcontext()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return torch.cuda.stream(self._streams[device])

    def _exchange(self, index: int, message: Message, before: Traffic) -> Outcome:
        """Compute a bucket's result from all ranks' messages (docs/architecture.md).

        Args:
            index: Of the bucket.
            message: This rank's.
            before: The engine's traffic before the bucket.
        """
        start = time.perf_counter() - message.seconds
        bucket, selected = self.buckets[index], message.selected
        composition, spec = self.composition, bucket.spec
        _, exchange, k = self._route(bucket)
        for watch in self.watchers.values():
            watch(bucket, selected)
        control, memory = composition.control, composition.memory
        if control is not None and bucket.density is not None and message.is_finite:
            control.observe(bucket, bucket.buffers[memory.unsent], selected)

        # Exchange.
        flag = self._flag(index)
        context = Context(bucket, k, composition.codec, self.engine, message.is_finite, flag)
        exchanged = exchange.reduce(selected, context)
        non_finite = exchanged.non_finite

        # Scale the sum, and return to the parameters' basis. The division by P is here.
        contributions, divisor = exchanged.contributions, 1
        if exchanged.scale is Scale.WORLD_SIZE:
            divisor = self.engine.size
        elif exchanged.scale is Scale.CONTRIBUTORS:
            contributions = [mean_of_contributors(contributions)]
        may_overflow = bucket.dtype == torch.float16 or composition.nonfinite == 'skip'
        result: list[Tensor] = []
        if not composition.transform.is_identity:
            result = [bucket.add_up(contributions, divisor)]
            bucket.gradient.copy_(composition.transform.inverse(result[0], spec))
        else:
            bucket.assign(contributions, divisor)
            is_narrow = bucket.dtype != torch.float32
            if composition.memory.needs_mean or (may_overflow and is_narrow):
                result = bucket.result
        # The result before a transform's last step: the sign of a NaN is 0.
        if not non_finite and may_overflow and not is_finite_mean(bucket, result):
            # A sum of finite gradients, or a residual gathered over many steps, may exceed what
            # their type holds; the same on all ranks.
            non_finite = True
            dtype = str(bucket.dtype).removeprefix('torch.')
            self._failures[index].append(f'{bucket.name}, whose mean {dtype} cannot hold')

        # Error feedback. A non-finite result, and what was cut from it, must not enter a memory.
        if not non_finite:
            if composition.clipping is not None and composition.clipping.waits(bucket):
                composition.memory.clip_mean(bucket, composition.clipping.clip_mean)
            composition.memory.update(bucket, selected, exchanged, result)
            if self.scaling is not None and not bucket.scale(self.scaling.scale(bucket.device)):
                non_finite = True
                scale = f'{bucket.name}, whose mean is too large for its scale'
                self._failures[index].append(scale)
        sent = (exchanged.sent or selected).values.numel()
        self._account(bucket, sent, time.perf_counter() - start, before, exchanged.flag is not None)
        if flag is not None:
            self.unused, self._layouts = self._find(flag, exchanged.flag)
        return Outcome(non_finite, Fence(bucket.device))

    def _flag(self, index: int) -> bool | None:
        """Return whether this rank lacks a gradient in this step; None but for the last bucket.

        When the last bucket is processed, the gradients of all others have been collected.
        """
        if not self.find_unused or index + 1 < len(self.buckets):
            return None
        return any(bucket.unused for bucket in self.buckets)

    def _find(self, ours: bool, anywhere: bool | None) -> tuple[set[str], dict[str, int]]:
        """Return the parameters that no rank used in this step, and the layouts of the gradients of
        the others (``Bucket.follow``), where a rank lacks one. A collective.

        Args:
            ours: Whether this rank lacks a gradient.
            anywhere: Whether any rank does; None where no exchange carried that.
        """
        unused = set().union(*(bucket.unused for bucket in self.buckets))
        engine, device = self.engine, self.buckets[-1].device
        if engine.size == 1:
            return unused, {}
        if anywhere is None:
            flag = torch.tensor([float(ours)], dtype=torch.float32, device=device)
            anywhere = bool(engine.all_reduce(flag) > 0)
        if not anywhere:
            return set(), {}
        names = [member.name for bucket in self.buckets for member in bucket.members]
        dims = {name: dim for each in self.buckets for name, dim in each.sparse_dims.items()}
        uses = [(0, 0) if name in unused else (1, dims.get(name, 0)) for name in names]
        sums = engine.all_reduce(torch.tensor(uses, dtype=torch.float32, device=device)).tolist()
        found = dict(zip(names, sums, strict=True))
        layouts = {name: round(total / count) for name, (count, total) in found.items() if count}
        return found.keys() - layouts.keys(), layouts

    def _select(self, index: int, compressor: Compressor) -> tuple[Sparse, bool]:
        """Return this rank's message, and whether its gradient is finite.

        A rank whose gradient is not finite leaves its memory alone and sends a NaN.
        """
        composition, bucket = self.composition, self.buckets[index]
        if self._discards:
            bucket.pieces[0][0] = torch.nan
        # The pass that renews a memory finds what is not finite, and leaves the memory as it was.
        checks = not composition.memory.renewed(bucket)
        is_finite = not checks or finite(*bucket.pieces)
        if not is_finite:
            self._failures[index].extend(not_finite(bucket))
        elif self._clips_now(bucket):
            composition.clipping.clip([bucket], self.engine)  # type: ignore[union-attr]

        # Sums that come before error feedback (within a machine). Also while the bucket is
        # uncompressed for now, so that the momentum stays in one place.
        if bucket.spec.schedule is not None:
            was_finite = is_finite
            is_finite = composition.exchange.prepare(bucket, self.engine, is_finite)
            if was_finite and not is_finite:
                # Another rank was non-finite, or the fp16 sum within the machine overflowed.
                self._failures[index].append(f'{bucket.name}, summed within the machine')
        if is_finite:
            if self.find_unused and bucket.unused:
                self._kept[index] = bucket.state.copy_of(bucket.unused)
            if not composition.transform.is_identity:
                bucket.transformed = composition.transform.forward(bucket.gradient, bucket.spec)
            try:
                selected = composition.memory.select(bucket, compressor)
            except NotFiniteError:
                bucket.revert()
                self._failures[index].extend(list(not_finite(bucket)) or [bucket.name])
                return non_finite_message(bucket, compressor.payload), False
            bucket.transformed = None
            if not checks or finite(selected.values):
                return selected, True
            # Finite gradients can add up to more than float32 holds.
            self._failures[index].append(bucket.name)
        return non_finite_message(bucket, compressor.payload), False

    def _clips_now(self, bucket: Bucket) -> bool:
        """Return whether a bucket's own gradient is clipped, before error feedback."""
        clipping = self.composition.clipping
        return clipping is not None and self.composition.overlaps and not clipping.waits(bucket)

    @property
    def _renews(self) -> bool:
        """Whether memories may be written anew beside the present ones: nothing else of a step
        reads the gradient before them, or changes it, and none before an earlier exchange of the
        step is still needed, whose place they would take."""
        composition = self.composition
        return (
            composition.nonfinite == 'skip'
            and not self._earlier
            and composition.clipping is None
            and composition.transform.is_identity
            and makes_alone(composition)
        )

    def _route(self, bucket: Bucket) -> tuple[Compressor, Exchange, int]:
        """Return compressor, exchange and the number of elements that a rank may send.

        A bucket goes uncompressed where its schedule says so, and where compressed messages would
        not be smaller.
        """
        composition, spec, density = self.composition, bucket.spec, bucket.density
        volume = composition.volume
        if density is not None and volume.compresses(spec, density, self.engine.size):
            return composition.compressor, composition.exchange, volume.budget(spec, density)
        return *self._uncompressed, spec.numel

    def _account(
        self, bucket: Bucket, sent: int, seconds: float, before: Traffic, has_flag: bool
    ) -> None:
        """Add one bucket's elements, bytes and seconds to ``progress``."""
        after, progress, codec = self.engine.traffic, self.progress, self.composition.codec
        _, all_reduce = self._uncompressed
        progress.sent_elements += sent
        progress.elements += bucket.numel
        numel, size = bucket.numel, self.engine.size
        of_flag = has_flag and round(ring_bytes(numel + 1, size)) - round(ring_bytes(numel, size))
        progress.count(before, after)
        progress.sent -= of_flag
        progress.received -= of_flag
        progress.path -= of_flag
        dense = all_reduce.bytes_sent(bucket.spec, bucket.numel, codec, self.engine.size)
        if self.counts_steps:
            progress.dense_sent += round(dense)
        progress.communicate += after.seconds - before.seconds
        progress.compress += seconds - (after.seconds - before.seconds)

    def _non_finite(self, outcomes: Sequence[Outcome]) -> NonFiniteGradientError:
        """Return this rank's error, which names its own parameters or says that another failed."""
        rank = self.engine.rank
        failures = [each for _, found in sorted(self._failures.items()) for each in found]
        self._failures.clear()
        if failures:
            names = ', '.join(failures)
            return NonFiniteGradientError(f'rank {rank}: not finite: gradient of {names}', rank)
        failed = zip(self.buckets, outcomes, strict=True)
        names = ', '.join(bucket.name for bucket, outcome in failed if outcome.non_finite)
        return NonFiniteGradientError(f'not finite on another rank: gradient in {names}')
