"""A breakdown of training steps by bucket and phase, as a table and as a Chrome trace."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType

from dgc.handshake import gather_states
from dgc.selection import Reducing
from dgc.spans import Recorder, Span, events, table


class Trace:
    """Records the phases of all buckets while it is open. Nothing is recorded otherwise.

        with dgc.Trace(optimizer) as trace:
            for batch in islice(loader, 10):
                ...
                optimizer.step()
        print(trace.table())            # this rank's: ms per step of merging, compressing, …
        trace.save('trace.json')        # of all ranks, for chrome://tracing and ui.perfetto.dev

    Phases are those of ``dgc.spans.Phase``. What overlaps with the backward pass, and with other
    buckets, is counted in full. With simulated ranks, which run in turn, calls of the engine
    include what the others compute. With a hook for DistributedDataParallel, torch merges and
    copies gradients and applies them, which is not recorded.

    Args:
        optimizer: A DistributedOptimizer, LocalSteps, StreamingSteps, or the state of a DDP hook
            after its first backward pass.

    Attributes:
        spans: Of this rank, in the order in which they ended.
        steps: Optimizer steps while it was open.
    """

    def __init__(self, optimizer: Reducing) -> None:
        self._reducer = optimizer.reducer
        self._recorder = Recorder()
        self._before = 0
        self.steps = 0

    @property
    def spans(self) -> list[Span]:
        """See the class."""
        return self._recorder.spans

    def start(self) -> None:
        """Record from now on. To be called between two steps, by the thread that trains.

        Raises:
            RuntimeError: Where another trace of this optimizer is open.
        """
        if self._reducer.recorder is not None:
            raise RuntimeError('another trace of this optimizer is open: stop() it first')
        self._recorder = Recorder()
        self._before = self._reducer.progress.steps
        self._reducer.recorder = self._reducer.engine.recorder = self._recorder

    def stop(self) -> None:
        """Record no more. To be called between two steps."""
        if self._reducer.recorder is self._recorder:
            self._recorder.is_open = False
            self._reducer.recorder = self._reducer.engine.recorder = None
            self.steps = self._reducer.progress.steps - self._before

    def __enter__(self) -> Trace:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def table(self) -> str:
        """Return the ms per step of each phase on this rank, a line for each bucket."""
        sizes = {bucket.name: bucket.numel for bucket in self._reducer.buckets}
        return table(self.spans, sizes, self.steps)

    def gather(self) -> list[list[Span]]:
        """Return the spans of all ranks. A collective."""
        device = self._reducer.buckets[0].device
        found = gather_states(self._reducer.engine, [tuple(each) for each in self.spans], device)
        return [[Span(*each) for each in spans] for spans in found]

    def save(self, path: str | Path) -> None:
        """Write the trace of all ranks as JSON, on rank 0. A collective."""
        ranks = self.gather()
        if self._reducer.engine.rank == 0:
            Path(path).write_text(json.dumps(events(ranks)))
