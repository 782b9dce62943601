"""Time to select what is sent, compared with the time that memory accesses need.

    python -m bench.compress --numel 25000000 --ratio 0.001 --threads 1 2 --json compress.json
    python -m bench.compress --numel 100000000 --device cuda

One row per memory and compressor. The floor is the time of the memory accesses that no compression
can avoid: the gradient read, two buffers read and written, 20 bytes per element, at the speed at
which the same run copies a tensor. Rows are measured in turn, in each round after a copy, so that
other load on the machine affects all of them; all numbers are medians over the rounds. '-unfused'
is the same computation in plain PyTorch.
"""

from __future__ import annotations

import argparse
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
from dgc.algorithms import ALGORITHMS
from dgc.bucket_spec import BucketSpec, ParameterSpec
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
from dgc.nonfinite import finite
from dgc.schedule import DensitySchedule
from dgc.sparse import Sparse
from dgc.state import Elements
from tools.harness.cli import Parser, check_folder, names
from tools.harness.spec import write_json

PROGRAM = 'bench.compress'
FLOOR_BYTES = 20  # per element: the gradient read, momentum and velocity read and written
COPY_BYTES = 8  # per element: read, and written elsewhere
GRADIENTS = 3  # different gradients, which are used in turn

STATE = {'memory': {name: Elements() for name in ('momentum', 'velocity', 'residual')}}
SPARSE_INDICES = [name for name in INDICES if name not in ('none', 'even')]

Milliseconds = list[float]


@dataclass
class Row:
    """One way to compress, with its measurements.

    fused: whether to use the fused kernels, if there are any.
    codec: of its messages, where it is not that of the command line.
    checks: look for what is not finite before the memory is changed, as with nonfinite='stop'.
    renews: write the memory anew beside the present one, which finds it in the same pass, as with
        nonfinite='skip'.
    remembered: what the compressor keeps of the bucket between steps.
    """

    name: str
    memory: Memory
    compressor: Compressor
    fused: bool = True
    codec: Codec | None = None
    checks: bool = False
    renews: bool = False
    remembered: dict[str, Any] = field(default_factory=dict)
    select: Milliseconds = field(default_factory=list)
    encode: Milliseconds = field(default_factory=list)
    decode: Milliseconds = field(default_factory=list)
    message: Sparse | None = None


def rows() -> list[Row]:
    """New rows, without measurements."""
    return [
        Row('dgc', MomentumCorrection(), SampledTopK()),
        Row('dgc-checked', MomentumCorrection(), SampledTopK(), checks=True),
        Row('dgc-renewed', MomentumCorrection(), SampledTopK(), renews=True),
        Row('dgc-unfused', MomentumCorrection(), SampledTopK(), fused=False),
        Row('dgc-no-masking', MomentumCorrection(momentum_masking=False), SampledTopK()),
        Row('dgc-uniform', MomentumCorrection(), SampledTopK(strided_sample=False)),
        Row('residual', Residual(), SampledTopK()),
        Row('residual-unfused', Residual(), SampledTopK(), fused=False),
        Row('gaussian', MomentumCorrection(), GaussianThreshold()),
        Row('periodic', MomentumCorrection(), PeriodicThreshold()),
        Row('topk-exact', MomentumCorrection(), TopK()),
        of_algorithm('sparse-loco'),
    ]


def of_algorithm(name: str) -> Row:
    """A new row with the memory, the compressor and the codec of an algorithm; its density is that
    of its compressor."""
    parts = ALGORITHMS[name].composition()
    return Row(name, parts.memory, parts.compressor, codec=parts.codec)


def measure(
    chosen: Sequence[Row],
    numel: int,
    density: float,
    codec: Codec,
    rounds: int,
    device: str = 'cpu',
) -> Milliseconds:
    """Measure the rows on a bucket of ``numel`` elements, and add the times to them.

    Returns:
        The times of copying float32 [numel], one per round.
    """
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(numel, generator=generator).to(device) for _ in range(GRADIENTS)]
    # All rows use the same storage, so that none of them finds it in another cache state.
    group = {'momentum': 0.9, 'nesterov': False}
    parameter = Parameter(torch.empty(numel, 1, device=device), requires_grad=False)
    schedule = DensitySchedule(density)
    spec = BucketSpec.of([ParameterSpec('weight', (numel, 1), device=parameter.device)], schedule)
    bucket = Bucket(spec, [(parameter, group)], STATE)
    bucket.density = density
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
    """Select, encode and decode once, and add the times to the row."""
    codec = row.codec or codec
    with nullcontext() if row.fused else ops.unfused():
        row.message = message = timed(lambda: select(row, bucket), row.select)
        encoded = timed(lambda: codec.encode(message), row.encode)
        timed(lambda: codec.decode(encoded), row.decode)


def select(row: Row, bucket: Bucket) -> Sparse:
    """Select a message, and remove it from the memory."""
    bucket.state['compressor'] = {'search': row.remembered}
    bucket.renews = row.renews
    if row.checks:
        assert finite(*bucket.pieces)
    message = row.memory.select(bucket, row.compressor)
    row.memory.remove_sent(bucket, message)
    return message


def timed(job: Callable[[], Any], times: Milliseconds) -> Any:
    """Return ``job()``, and append its milliseconds to ``times``, with those of its kernels."""
    start = settled()
    result = job()
    times.append((settled() - start) * 1e3)
    return result


def settled() -> float:
    """Return the clock in seconds, after the work queued on a GPU, if any is used, has finished."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def figures(row: Row, copies: Milliseconds, codec: Codec, threads: int) -> dict[str, Any]:
    """A row of the JSON file."""
    assert row.message is not None
    codec = row.codec or codec
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


def table(results: Sequence[dict[str, Any]], numel: int, density: float, codec: Codec) -> str:
    """A table for people."""
    shares = [share for share in (density, 1 - density) if share]
    entropy = sum(share * -math.log2(share) for share in shares)  # bits per element of the tensor
    title = (
        f'{numel:,} float32 elements at a density of {density:g}; {codec.values} values, '
        f'{codec.indices} indices (entropy of an index: {entropy / density:.2f} bits; a '
        f'header takes {HEADER.size} bytes)'
    )
    head = (
        f'{"":18}{"threads":>8}{"ms":>9}{"fastest":>9}{"slowest":>9}{"floor":>8}{"ratio":>7}'
        f'{"sent":>9}{"bits/index":>12}{"bits/value":>12}{"encode":>8}{"decode":>8}'
    )
    lines = [
        f'{r["name"]:18}{r["threads"]:8}{r["ms"]:9.2f}{r["ms_fastest"]:9.2f}{r["ms_slowest"]:9.2f}'
        f'{r["floor_ms"]:8.2f}{r["floor_ratio"]:7.2f}{r["kept"]:9,}{r["bits_per_index"]:12.2f}'
        f'{r["bits_per_value"]:12.2f}{r["encode_ms"]:8.2f}{r["decode_ms"]:8.2f}'
        for r in results
    ]
    return '\n'.join([title, head, *lines, *comparisons(results)])


def comparisons(results: Sequence[dict[str, Any]]) -> list[str]:
    """How many times faster each fused row is than its unfused one."""
    by_name = {(r['name'], r['threads']): r['ms'] for r in results}
    return [
        f'{name} on {threads} thread(s): {by_name[f"{name}-unfused", threads] / ms:.1f} times '
        'faster than in plain PyTorch'
        for (name, threads), ms in by_name.items()
        if (f'{name}-unfused', threads) in by_name
    ]


def progress(text: str) -> None:
    """On a terminal, print a line that the next one replaces."""
    if sys.stderr.isatty():
        print(f'\r{text:60}', end='' if text else '\r', file=sys.stderr, flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = Parser(PROGRAM, __doc__ or '')
    add = parser.add_argument
    add('--numel', type=int, default=25_000_000, help='elements of the tensor (25,000,000)')
    add('--ratio', type=float, default=0.001, help='density: fraction of them to send (0.001)')
    add('--threads', type=int, nargs='+', default=[torch.get_num_threads()],
        metavar='N', help='numbers of threads (as many as PyTorch uses)')  # fmt: skip
    add('--rounds', type=int, default=15, help='measurements of each row (15)')
    add('--values', choices=list(VALUES), default='int8', help='coding of values (int8)')
    add('--indices', choices=SPARSE_INDICES, default='packed', help='coding of indices (packed)')
    add('--only', default='', metavar='NAME,...', help='measure only these rows')
    add('--device', choices=('cpu', 'cuda'), default='cpu', help='that compresses (cpu)')
    add('--json', type=Path, metavar='FILE', help='write the rows to this file')
    arguments = parser.parse_args(argv)
    try:
        check(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def check(arguments: argparse.Namespace) -> None:
    """Raise ValueError for invalid arguments."""
    every = [row.name for row in rows()]
    arguments.only = names(arguments.only) or every
    unknown = set(arguments.only) - set(every)
    if unknown:
        raise ValueError(f'--only {",".join(sorted(unknown))}: the rows are {", ".join(every)}')
    if arguments.device == 'cuda' and not torch.cuda.is_available():
        raise ValueError('--device cuda: torch sees no GPU here')
    if not 0 < arguments.ratio <= 1:
        raise ValueError(f'--ratio {arguments.ratio}: it must lie between 0 and 1')
    counts = {'numel': arguments.numel, 'rounds': arguments.rounds}
    for name, value in {**counts, 'threads': min(arguments.threads)}.items():
        if value < 1:
            raise ValueError(f'--{name} {value}: it must be at least 1')
    check_folder('--json', arguments.json)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the rows; return the exit code."""
    arguments = parse(argv)
    codec, results = Codec(arguments.values, arguments.indices), []
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        chosen = [row for row in rows() if row.name in arguments.only]
        copies = measure(
            chosen, arguments.numel, arguments.ratio, codec, arguments.rounds, arguments.device
        )
        results += [figures(row, copies, codec, threads) for row in chosen]
    print(table(results, arguments.numel, arguments.ratio, codec))
    if arguments.json is not None:
        write_json(arguments.json, results)
    return 0


if __name__ == '__main__':
    sys.exit(main())
