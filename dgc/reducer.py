"""Takes each bucket down the path of a gradient, and brings the mean back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgc.buckets import Bucket
from dgc.composition import Composition
from dgc.compressors import Compressor, Dense, keep
from dgc.engines.base import Engine, Traffic
from dgc.exchanges import AllReduce, Exchange
from dgc.nonfinite import NonFiniteGradientError, finite, not_finite, poison


@dataclass
class Progress:
    """What a worker has done so far. Divide differences of two copies by steps or seconds.

    steps: optimizer steps.
    kept, numel: elements sent and elements there were, over all buckets and steps.
    sent, received: bytes of gradients, without start-up, metrics and evaluation.
    dense_sent: bytes that the same steps would have sent by dense all-reduces.
    compress, communicate: seconds on the path, outside and inside the engine.
    wait: seconds that the training loop stood still for the path.
    """

    steps: int = 0
    kept: int = 0
    numel: int = 0
    sent: int = 0
    received: int = 0
    dense_sent: int = 0
    compress: float = 0.0
    communicate: float = 0.0
    wait: float = 0.0


class Fence:
    """Work queued on a device so far, for another thread's stream to wait for; nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._event = None
        if device.type == 'cuda':
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))
        self._device = device

    def wait(self) -> None:
        """Let the current stream go on only after that work."""
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)


class Outcome(NamedTuple):
    """How a bucket came back. poisoned: some worker's gradient was not finite; done: the sum."""

    poisoned: bool
    done: Fence


class Reducer:
    """The path of a gradient, bucket after bucket, in the same fixed order on every rank.

    A bucket is handed over when its gradients are ready; whatever is missing when the step ends
    is sent as it stands, which is zero for parameters that took no part. So a parameter that is
    never used holds the buckets behind it back until then.
    """

    def __init__(self, buckets: Sequence[Bucket], composition: Composition, engine: Engine) -> None:
        self.buckets = buckets
        self.composition = composition
        self.engine = engine
        self.progress = Progress()
        self._dense = (Dense(), AllReduce())
        composition.exchange.check(engine, buckets[0].device if buckets else 'cpu')
        self._ready = [False] * len(buckets)
        self._pending: list[Future[Outcome]] = []
        self._failures: list[str] = []
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def set_ratios(self, step: int, steps_per_epoch: int) -> None:
        """Set every bucket's ratio for optimizer step ``step``, counted from 0."""
        for bucket in self.buckets:
            if bucket.schedule is not None:
                bucket.ratio = bucket.schedule.at(step, steps_per_epoch)

    def ready(self, index: int) -> None:
        """The gradients of bucket ``index`` are complete: start what may start."""
        self._ready[index] = True
        # An engine without a thread blocks the one that calls: on a GPU that is autograd's, which
        # all simulated workers share, so nothing would ever come of it.
        blocks = self.buckets[index].device.type == 'cuda' and not self.engine.has_thread
        if self.composition.overlaps and not blocks:
            self._start_in_order()

    def synchronize(self) -> bool:
        """Finish the step: every bucket's gradient becomes the mean over the workers.

        Returns False where all workers leave the step out. Raises NonFiniteGradientError, on all
        workers, where a gradient held an infinity or a NaN and the composition says to stop.
        """
        start = time.perf_counter()
        self._ready = [True] * len(self.buckets)
        usable = self.composition.overlaps or self._prepare_all()
        if usable:
            self._start_in_order()
        outcomes = [future.result() for future in self._pending]
        for outcome in outcomes:
            outcome.done.wait()
        self._pending = []
        self._ready = [False] * len(self.buckets)
        self.progress.wait += time.perf_counter() - start
        self.progress.steps += 1
        if any(outcome.poisoned for outcome in outcomes):
            raise self._non_finite(outcomes)
        return usable

    def state_dict(self) -> dict[str, Any]:
        """Everything that this worker keeps back, by parameter name."""
        memory: dict[str, dict[str, Tensor]] = {}
        for bucket in self.buckets:
            memory.update(bucket.state_dict())
        return {
            'memory': memory,
            'compressor': self.composition.compressor.state_dict(),
            'exchange': self.composition.exchange.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict()`` gave, however the parameters were grouped then.

        Raises ValueError where something that was kept back has no place here and would be lost.
        """
        self._abandon()
        places = {m.name: bucket.buffers for bucket in self.buckets for m in bucket.members}
        for name, buffers in state_dict['memory'].items():
            for buffer in buffers.keys() - places.get(name, {}).keys():
                raise ValueError(
                    f'the {buffer} that was kept back for {name} would be lost: resume with the '
                    'model and the memory that the state was saved with'
                )
        for bucket in self.buckets:
            bucket.load_state_dict(state_dict['memory'])
        self.composition.compressor.load_state_dict(state_dict['compressor'])
        self.composition.exchange.load_state_dict(state_dict.get('exchange', {}))

    def _abandon(self) -> None:
        """Forget a step that did not come to its end, once what it began is over."""
        wait(self._pending)
        self._pending = []
        self._ready = [False] * len(self.buckets)
        self._failures.clear()

    def _start_in_order(self) -> None:
        while len(self._pending) < len(self.buckets) and self._ready[len(self._pending)]:
            bucket = self.buckets[len(self._pending)]
            job = partial(self._reduce, bucket, Fence(bucket.device))
            self._pending.append(self.engine.submit(job))

    def _prepare_all(self) -> bool:
        """What must see every gradient of the step; returns False to leave the step out."""
        if not self.buckets:
            return True
        if self.composition.nonfinite == 'skip':
            bad = sum(not finite(*bucket.pieces) for bucket in self.buckets)
            flag = torch.tensor([float(bad)], device=self.buckets[0].device)
            if self.engine.all_reduce(flag).item():
                return False
        if self.composition.clipping is not None:
            self.composition.clipping.clip(self.buckets, self.engine)
        return True

    def _reduce(self, bucket: Bucket, gradients_complete: Fence) -> Outcome:
        """One bucket's way down the path and back, on the engine's thread."""
        with self._stream(bucket.device):
            gradients_complete.wait()
            return self._take_down_the_path(bucket)

    def _stream(self, device: torch.device) -> AbstractContextManager[Any]:
        """Inside, work goes on a stream beside the one that the backward pass uses."""
        if device.type != 'cuda':  # not torch.cuda.stream(None), which looks for a GPU each time
            return nullcontext()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return torch.cuda.stream(self._streams[device])

    def _take_down_the_path(self, bucket: Bucket) -> Outcome:
        start, before = time.perf_counter(), replace(self.engine.traffic)
        composition, memory = self.composition, self.composition.memory
        compressor, exchange = self._route(bucket)
        healthy = finite(*bucket.pieces)
        if not healthy:
            self._failures.extend(not_finite(bucket))
        elif composition.clipping is not None and composition.overlaps:
            composition.clipping.clip([bucket], self.engine)
        if bucket.schedule is not None:  # dense for now or not: the momentum has to be in one place
            was, healthy = healthy, composition.exchange.prepare(bucket, self.engine, healthy)
            if was and not healthy:  # another's fault, or half precision's
                self._failures.append(f'{bucket.name}, summed inside the machine')
        if healthy:
            selected = memory.select(bucket, compressor)
            healthy = finite(selected.values)
            if not healthy:  # finite gradients can add up to more than float32 holds
                self._failures.append(bucket.name)
        if not healthy:
            selected = poison(bucket, dense=isinstance(compressor, Dense))
        exchanged = exchange.sum(bucket, selected, composition.codec, self.engine)
        bucket.assign_mean(exchanged.parts, self.engine.size)
        poisoned = bool(bucket.pieces[0][0].isnan())
        if not poisoned and bucket.dtype == torch.float16 and not finite(*bucket.pieces):
            # Of what was kept in float32 over many steps; the same on all ranks.
            poisoned = True
            self._failures.append(f'{bucket.name}, whose mean float16 cannot hold')
        if not poisoned:  # else what others have sent, and we have cut, may hold a NaN
            memory.settle(bucket, selected, exchanged)
        kept = (exchanged.sent or selected).values.numel()
        self._account(bucket, kept, time.perf_counter() - start, before)
        return Outcome(poisoned, Fence(bucket.device))

    def _route(self, bucket: Bucket) -> tuple[Compressor, Exchange]:
        """The composition's compressor and exchange, or dense where that sends no more bytes."""
        composition, exchange = self.composition, self.composition.exchange
        if bucket.schedule is None or bucket.ratio >= 1:
            return self._dense
        k = keep(bucket.numel, bucket.ratio)
        if not exchange.pays(bucket.numel, k, composition.codec, max(self.engine.size, 2)):
            return self._dense
        return composition.compressor, exchange

    def _account(self, bucket: Bucket, kept: int, seconds: float, before: Traffic) -> None:
        after, progress, workers = self.engine.traffic, self.progress, self.engine.size
        progress.kept += kept
        progress.numel += bucket.numel
        progress.sent += after.sent - before.sent
        progress.received += after.received - before.received
        progress.dense_sent += round(
            self._dense[1].bytes_sent(bucket.numel, bucket.numel, self.composition.codec, workers)
        )
        progress.communicate += after.seconds - before.seconds
        progress.compress += seconds - (after.seconds - before.seconds)

    def _non_finite(self, outcomes: Sequence[Outcome]) -> NonFiniteGradientError:
        rank, failures, self._failures = self.engine.rank, self._failures, []
        if failures:
            names = ', '.join(failures)
            return NonFiniteGradientError(f'rank {rank}: not finite: gradient of {names}', rank)
        names = ', '.join(b.name for b, o in zip(self.buckets, outcomes, strict=True) if o.poisoned)
        return NonFiniteGradientError(f'not finite on another rank: gradient in {names}')
