"""How long it takes to choose what to send, against the time that memory needs.

    python -m bench.compress --numel 25000000 --ratio 0.001 --threads 1 2 --json compress.json

One row a memory and compressor. The floor is what any compression must move: the gradient read,
two buffers read and written, 20 bytes an element, at the speed at which the same run copies a
tensor. Rows take turns, each round after a copy, so that all meet the same machine; figures are
medians over the rounds. '-unfused' is the same in plain PyTorch.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter

from dgc import ops
from dgc.buckets import Bucket
from dgc.codec import HEADER, INDICES, VALUES, Codec
from dgc.compressors import (
    Compressor,
    GaussianThreshold,
    PeriodicThreshold,
    SampledTopK,
    TopK,
)
from dgc.memory import Memory, MomentumCorrection, Residual
from dgc.schedule import RatioSchedule
from dgc.sparse import Sparse

FLOOR_BYTES = 20  # an element: the gradient read, momentum and velocity read and written
COPY_BYTES = 8  # an element: read, and written elsewhere
GRADIENTS = 3  # different ones, which take turns

Milliseconds = list[float]


@dataclass
class Row:
    """One way to compress.

    fused: with the fused kernels, where there are any.
    """

    name: str
    memory: Memory
    compressor: Compressor
    fused: bool = True
    select: Milliseconds = field(default_factory=list)
    encode: Milliseconds = field(default_factory=list)
    decode: Milliseconds = field(default_factory=list)
    message: Sparse | None = None


def rows() -> list[Row]:
    """Fresh ones."""
    return [
        Row('dgc', MomentumCorrection(), SampledTopK()),
        Row('dgc-unfused', MomentumCorrection(), SampledTopK(), fused=False),
        Row('dgc-no-masking', MomentumCorrection(momentum_masking=False), SampledTopK()),
        Row('dgc-uniform', MomentumCorrection(), SampledTopK(strided_sample=False)),
        Row('residual', Residual(), SampledTopK()),
        Row('residual-unfused', Residual(), SampledTopK(), fused=False),
        Row('gaussian', MomentumCorrection(), GaussianThreshold()),
        Row('periodic', MomentumCorrection(), PeriodicThreshold()),
        Row('topk-exact', MomentumCorrection(), TopK()),
    ]


def measure(
    chosen: Sequence[Row], numel: int, ratio: float, codec: Codec, rounds: int
) -> Milliseconds:
    """Fill in the rows' times; returns those of copying ``[numel]`` float32."""
    draw = torch.Generator().manual_seed(0)
    gradients = [torch.randn(numel, generator=draw) for _ in range(GRADIENTS)]
    # All rows work on the same storage, as if each were the only one to use the memory.
    group = {'momentum': 0.9, 'nesterov': False}
    parameter = Parameter(torch.empty(numel, 1), requires_grad=False)
    bucket = Bucket(
        [('weight', parameter, group)],
        RatioSchedule(ratio),
        ('momentum', 'velocity', 'residual'),
    )
    bucket.ratio = ratio
    copies: Milliseconds = []
    for number in range(rounds + 1):  # the first is a warm-up
        bucket.gradient.copy_(gradients[number % GRADIENTS])
        timed(lambda: parameter.copy_(bucket.gradient.view(-1, 1)), copies)
        for row in chosen:
            one_round(row, bucket, codec)
            progress(f'{row.name}, round {number} of {rounds}')
    progress('')
    for times in [copies, *(t for row in chosen for t in (row.select, row.encode, row.decode))]:
        del times[0]
    return copies


def one_round(row: Row, bucket: Bucket, codec: Codec) -> None:
    """Select, encode and decode once."""
    with nullcontext() if row.fused else ops.unfused():
        row.message = message = timed(lambda: take(row, bucket), row.select)
        encoded = timed(lambda: codec.encode(message), row.encode)
        timed(lambda: codec.decode(encoded), row.decode)


def take(row: Row, bucket: Bucket) -> Sparse:
    """A message out of the memory, which then forgets it."""
    message = row.memory.select(bucket, row.compressor)
    row.memory.forget(bucket, message)
    return message


def timed(job: Callable[[], Any], times: Milliseconds) -> Any:
    """Run ``job`` and append how long it took."""
    start = time.perf_counter()
    result = job()
    times.append((time.perf_counter() - start) * 1e3)
    return result


def figures(row: Row, copies: Milliseconds, codec: Codec, threads: int) -> dict[str, Any]:
    """A row as it is written."""
    assert row.message is not None
    k, numel = len(row.message.values), row.message.numel
    floor = statistics.median(copies) * FLOOR_BYTES / COPY_BYTES
    milliseconds = statistics.median(row.select)
    indices = INDICES[codec.indices].capacity(numel, k)
    return {
        'name': row.name,
        'threads': threads,
        'ms': milliseconds,
        'ms_fastest': min(row.select),
        'ms_slowest': max(row.select),
        'floor_ms': floor,
        'floor_ratio': milliseconds / floor,
        'kept': k,
        'bits_per_index': 8 * indices / k,
        'bits_per_value': 8 * VALUES[codec.values].capacity(k) / k,
        'encode_ms': statistics.median(row.encode),
        'decode_ms': statistics.median(row.decode),
    }


def table(results: Sequence[dict[str, Any]], numel: int, ratio: float, codec: Codec) -> str:
    """What a person reads."""
    entropy = numel * (-ratio * math.log2(ratio) - (1 - ratio) * math.log2(1 - ratio))
    title = (
        f'{numel:,} float32 elements at a ratio of {ratio:g}; {codec.values} values, '
        f'{codec.indices} indices (entropy of an index: {entropy / (numel * ratio):.2f} bits; a '
        f'header takes {HEADER.size} bytes)'
    )
    head = (
        f'{"":18}{"threads":>8}{"ms":>9}{"fastest":>9}{"slowest":>9}{"floor":>8}{"ratio":>7}'
        f'{"kept":>9}{"bits/index":>12}{"bits/value":>12}{"encode":>8}{"decode":>8}'
    )
    lines = [
        f'{r["name"]:18}{r["threads"]:8}{r["ms"]:9.2f}{r["ms_fastest"]:9.2f}{r["ms_slowest"]:9.2f}'
        f'{r["floor_ms"]:8.2f}{r["floor_ratio"]:7.2f}{r["kept"]:9,}{r["bits_per_index"]:12.2f}'
        f'{r["bits_per_value"]:12.2f}{r["encode_ms"]:8.2f}{r["decode_ms"]:8.2f}'
        for r in results
    ]
    return '\n'.join([title, head, *lines, *comparisons(results)])


def comparisons(results: Sequence[dict[str, Any]]) -> list[str]:
    """How many times faster the fused rows are."""
    by_name = {(r['name'], r['threads']): r['ms'] for r in results}
    return [
        f'{name} on {threads} thread(s): {by_name[f"{name}-unfused", threads] / ms:.1f} times '
        'faster than in plain PyTorch'
        for (name, threads), ms in by_name.items()
        if (f'{name}-unfused', threads) in by_name
    ]


def progress(text: str) -> None:
    """A line that the next one replaces, where somebody watches."""
    if sys.stderr.isatty():
        print(f'\r{text:60}', end='' if text else '\r', file=sys.stderr, flush=True)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        'python -m bench.compress', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument('--numel', type=int, default=25_000_000, help='elements of the tensor')
    parser.add_argument('--ratio', type=float, default=0.001, help='share of them to keep')
    parser.add_argument('--threads', type=int, nargs='+', default=[torch.get_num_threads()])
    parser.add_argument('--rounds', type=int, default=15, help='measurements of each row')
    parser.add_argument('--values', choices=list(VALUES), default='int8', help='their coding')
    parser.add_argument('--indices', choices=list(INDICES), default='packed', help='their coding')
    parser.add_argument('--only', default='', help='rows to measure: name,name')
    parser.add_argument('--json', type=Path, help='write the rows into this file')
    options = parser.parse_args(given)
    names = [row.name for row in rows()]
    options.only = options.only.split(',') if options.only else names
    unknown = set(options.only) - set(names)
    if unknown:
        parser.error(f'--only {",".join(sorted(unknown))}: the rows are {", ".join(names)}')
    if not 0 < options.ratio <= 1:
        parser.error(f'--ratio {options.ratio}: it must lie between 0 and 1')
    for name in ('numel', 'rounds'):
        if getattr(options, name) < 1:
            parser.error(f'--{name} {getattr(options, name)}: it must be at least 1')
    if min(options.threads) < 1:
        parser.error(f'--threads {min(options.threads)}: it must be at least 1')
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and write."""
    options = arguments(given)
    codec, results = Codec(options.values, options.indices), []
    for threads in options.threads:
        torch.set_num_threads(threads)
        chosen = [row for row in rows() if row.name in options.only]
        copies = measure(chosen, options.numel, options.ratio, codec, options.rounds)
        results += [figures(row, copies, codec, threads) for row in chosen]
    print(table(results, options.numel, options.ratio, codec))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
