"""When the phases of each bucket ran on this rank: recorded, as a table, and as Chrome's events."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch


class Phase(Enum):
    """What happens to a bucket.

    MERGE: gradients become those of the bucket; copied, where they are not read in place.
    COMPRESS: clip, transform, add to the residual, select.
    EXCHANGE: all that combines the ranks' messages, and the memory's update; COMMUNICATE within it.
    COMMUNICATE: one call of the engine: bytes travel, or another rank is waited for.
    WAIT: the training loop waits for the result.
    COPY: the result becomes ``.grad``.
    APPLY: the optimizer steps.
    """

    MERGE = 'merge'
    COMPRESS = 'compress'
    EXCHANGE = 'exchange'
    COMMUNICATE = 'communicate'
    WAIT = 'wait'
    COPY = 'copy'
    APPLY = 'apply'


# Chrome draws a lane for each thread. What JobThread names its threads decides.
LOOP, AUTOGRAD = 'training loop', 'autograd'
LANES = {LOOP: 0, AUTOGRAD: 1, 'dgc-compute': 2, 'dgc-engine': 3}
# The columns of a table; 'decompress' is an exchange without its calls: encode, decode, add up.
COLUMNS = ('merge', 'compress', 'communicate', 'decompress', 'copy', 'apply', 'wait')


class Span(NamedTuple):
    """A phase of a bucket in one step.

    Attributes:
        phase: As the value of a Phase.
        name: That of the phase, or of the engine's call.
        bucket: Its name; '' where the phase is of no bucket, or of all.
        lane: The thread, of LANES.
        begin: In seconds since 1970, by this machine's clock.
        seconds: How long it took.
        sent: Bytes that the call sent.
    """

    phase: str
    name: str
    bucket: str
    lane: str
    begin: float
    seconds: float
    sent: int = 0


class Recorder:
    """Receives the phases of buckets from all threads of a rank, where it is set.

    On a GPU the end of a phase is when its kernels have run, for which the thread waits.

    Attributes:
        spans: Those received so far.
        is_open: Whether it still receives any: messages may be under way when a trace ends.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.is_open = True
        self._loop = threading.get_ident()
        self._offset = time.time() - time.perf_counter()

    def add(
        self,
        phase: Phase,
        bucket: str,
        begin: float,
        device: torch.device | None = None,
        end: float | None = None,
    ) -> None:
        """Add a phase that has ended, now or at ``end``.

        Args:
            phase: Which.
            bucket: The name of the bucket; '' for all.
            begin, end: By ``time.perf_counter``.
            device: Of the tensors.
        """
        if end is None:
            if device is not None and device.type == 'cuda':
                torch.cuda.current_stream(device).synchronize()
            end = time.perf_counter()
        self._append(phase, phase.value, bucket, begin, end)

    def add_call(self, name: str, bucket: str, begin: float, end: float, sent: int) -> None:
        """Add a call of the engine, which sent so many bytes."""
        self._append(Phase.COMMUNICATE, name, bucket, begin, end, sent)

    def _append(
        self, phase: Phase, name: str, bucket: str, begin: float, end: float, sent: int = 0
    ) -> None:
        if not self.is_open:
            return
        thread = threading.current_thread()
        lane = thread.name if thread.name in LANES else AUTOGRAD
        if thread.ident == self._loop:
            lane = LOOP
        start = begin + self._offset
        self.spans.append(Span(phase.value, name, bucket, lane, start, end - begin, sent))


def totals(spans: Iterable[Span]) -> dict[str, dict[str, float]]:
    """Return the seconds of each of COLUMNS by bucket, and the bytes 'sent'.

    Calls of the engine outside of buckets, such as those of metrics, are left out.
    """
    found: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys((*COLUMNS, 'sent'), 0.0))
    for span in spans:
        if span.phase == Phase.COMMUNICATE.value:
            if span.bucket:
                found[span.bucket]['communicate'] += span.seconds
                found[span.bucket]['decompress'] -= span.seconds
                found[span.bucket]['sent'] += span.sent
        elif span.phase == Phase.EXCHANGE.value:
            found[span.bucket]['decompress'] += span.seconds
        else:
            found[span.bucket][span.phase] += span.seconds
    return dict(found)


def table(spans: Iterable[Span], sizes: Mapping[str, int], steps: int) -> str:
    """Return the ms of each phase in the mean of the steps, a line for each bucket.

    Args:
        spans: Of one rank.
        sizes: The elements of each bucket, in the order in which they are sent.
        steps: That were recorded.
    """
    found = totals(spans)
    rows = [(name, f'{numel:,}', found[name]) for name, numel in sizes.items() if name in found]
    if '' in found:
        rows.append(('all buckets', '', found['']))
    whole = {name: sum(row[name] for _, _, row in rows) for name in (*COLUMNS, 'sent')}
    rows.append(('sum', f'{sum(sizes.values()):,}', whole))
    width = max(len(name) for name, _, _ in rows)
    heads = ''.join(f'{name:>13}' for name in ('elements', 'bytes sent', *COLUMNS))
    lines = [f'{"ms per step":{width}}{heads}']
    for name, numel, row in rows:
        cells = ''.join(f'{1e3 * row[column] / max(steps, 1):13.3f}' for column in COLUMNS)
        lines.append(f'{name:{width}}{numel:>13}{row["sent"] / max(steps, 1):13,.0f}{cells}')
    return '\n'.join(lines)


def events(ranks: Sequence[Sequence[Span]]) -> dict[str, Any]:
    """Return what chrome://tracing and Perfetto open: ranks as processes, threads as their lanes.

    Args:
        ranks: The spans of each rank. Machines' clocks are compared as they are.
    """
    begin = min((span.begin for spans in ranks for span in spans), default=0.0)
    found: list[dict[str, Any]] = []
    for rank, spans in enumerate(ranks):
        lanes = sorted({span.lane for span in spans}, key=LANES.__getitem__)
        found.append(metadata('process_name', rank, 0, f'rank {rank}'))
        found += [metadata('thread_name', rank, LANES[lane], lane) for lane in lanes]
        for span in sorted(spans, key=lambda span: span.begin):
            found.append(
                {
                    'name': f'{span.name} {span.bucket}'.rstrip(),
                    'cat': span.phase,
                    'ph': 'X',
                    'pid': rank,
                    'tid': LANES[span.lane],
                    'ts': round(1e6 * (span.begin - begin), 3),
                    'dur': round(1e6 * span.seconds, 3),
                    'args': {'bucket': span.bucket, **({'sent': span.sent} if span.sent else {})},
                }
            )
    return {'traceEvents': found, 'displayTimeUnit': 'ms'}


def metadata(what: str, rank: int, lane: int, name: str) -> dict[str, Any]:
    """Return the event that names a process or a thread."""
    return {'name': what, 'ph': 'M', 'pid': rank, 'tid': lane, 'args': {'name': name}}
