"""Calls every operator of the C++ library with random arguments, for some seconds.

A call returns, or raises RuntimeError or IndexError. What else it does, the sanitizers report, and
end the process; the seed and the number of the call repeat it.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

if __name__ == '__main__':  # before the library is loaded
    from tools.sanitize import build as _  # noqa: F401

from dgc.codec import even
from dgc.engines.base import as_bytes
from dgc.ops import native
from dgc.ops.contract import Step
from dgc.ops.native import SETTINGS
from tools.harness.cli import Parser

PROGRAM = 'tools.sanitize.fuzz'
SIZES = (0, 1, 2, 7, 8, 15, 16, 17, 63, 511, 512, 513, 1000, 4097, 70_001)
WHOLE = (-(2**63), -(2**40), -1, 0, 1, 2, 3, 4, 7, 8, 63, 64, 512, 2**31, 2**40, 2**62, 2**63 - 1)
NUMBERS = (0.0, -0.0, 1e-45, 0.1, 0.9, 1.0, -3.0, 3e38, 1e300, float('inf'), float('nan'))
TYPES = (torch.float32, torch.bfloat16, torch.float16)
BUFFERS = (torch.float32, torch.bfloat16)  # that a memory may have
OTHERS = (torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool)
MOST = 1 << 22  # bytes that a call may need; more would measure the machine's memory


class Draw(random.Random):
    """Draws arguments."""

    def whole(self) -> int:
        """A whole number, often one at an edge."""
        return self.choice(WHOLE) if self.random() < 0.5 else self.randrange(-5, 2000)

    def number(self) -> float:
        """A number, often a special one."""
        return self.choice(NUMBERS) if self.random() < 0.5 else self.gauss(0, 1)

    def special(self) -> Tensor:
        """A special float32 number."""
        return torch.tensor(self.choice(NUMBERS), dtype=torch.float64).float()

    def tensor(self, numel: int, dtype: torch.dtype, high: int = 0) -> Tensor:
        """A flat tensor: numbers with special ones among them, or whole numbers up to ``high``."""
        generator = torch.Generator().manual_seed(self.getrandbits(60))
        if dtype.is_floating_point:
            values = torch.randn(numel, generator=generator, dtype=torch.float32).pow(3)
            for _ in range(self.choice((0, 0, 0, 3))):
                if numel:
                    values[self.randrange(numel)] = self.special()
            return values.to(dtype)
        return torch.randint(max(high, 1), (numel,), generator=generator).to(dtype)

    def indices(self, count: int, numel: int) -> Tensor:
        """Ascending indices, ``count`` at most, of a tensor of ``numel`` elements."""
        found = {self.randrange(numel) for _ in range(count)} if numel > 0 else set()
        return torch.tensor(sorted(found), dtype=torch.int64)

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """``flat`` in pieces of memory of their own, some of them empty."""
        cuts = sorted(self.randrange(len(flat) + 1) for _ in range(self.choice((0, 0, 1, 4))))
        ends = [0, *cuts, len(flat)]
        return [flat[a:b].clone() for a, b in itertools.pairwise(ends)]

    def spoiled(self, tensor: Tensor) -> Tensor:
        """A tensor that does not fit where ``tensor`` did."""
        way = self.randrange(7)
        if way == 0:
            return self.tensor(self.choice(SIZES), tensor.dtype, 1000)
        if way == 1:
            return tensor.to(self.choice((*TYPES, *OTHERS)))
        if way == 2:
            return tensor.repeat_interleave(2)[::2]  # not contiguous
        if way == 3:
            return tensor.view(-1, 1)
        if way == 4:  # not aligned
            raw = bytearray(1) + bytearray(as_bytes(tensor).numpy().tobytes())
            return torch.frombuffer(raw, dtype=tensor.dtype, offset=1) if len(tensor) else tensor
        if way == 5 and len(tensor):
            other = tensor.clone()
            whole = torch.tensor(self.whole()).to(tensor.dtype)
            other[self.randrange(len(tensor))] = (
                self.special() if tensor.is_floating_point() else whole
            )
            return other
        return tensor[: len(tensor) // 2]

    def like(self, number: float) -> float:
        """Any number of the same type."""
        return self.whole() if isinstance(number, int) else self.number()


def update(draw: Draw) -> tuple[list[Any], list[int]]:
    """The arguments that a memory's update has: v, gradients, u, rule and momentum; and the keys
    of the random numbers that round to bfloat16."""
    numel, rule, kept = draw.choice(SIZES), draw.randrange(3), draw.choice(BUFFERS)
    gradients = draw.pieces(draw.tensor(numel, draw.choice(TYPES)))
    u = draw.tensor(numel, kept) if rule else None
    keys = [draw.getrandbits(32) for _ in range(2 * (kept == torch.bfloat16))]
    return [draw.tensor(numel, kept), gradients, u, rule, draw.number()], keys


def accumulate(draw: Draw) -> list[Any]:
    """Arguments of accumulate."""
    arguments, keys = update(draw)
    v, buffers = arguments[0], 1 if arguments[2] is None else 2
    into = [draw.tensor(len(v), v.dtype) for _ in range(draw.choice((0, buffers)))]
    return [*arguments, abs(draw.number()), draw.randrange(100), into, keys]


def sample(draw: Draw) -> list[Any]:
    """Arguments of sample."""
    arguments, keys = update(draw)
    numel = len(arguments[0])
    positions = draw.tensor(draw.choice(SIZES) if numel else 0, torch.int64, numel)
    return [*arguments, keys, positions]


def collect(draw: Draw) -> list[Any]:
    """Arguments of collect."""
    values = draw.tensor(draw.choice(SIZES), draw.choice(BUFFERS))
    return [values, abs(draw.number()), draw.randrange(99)]


def places(tensors: list[Tensor]) -> list[int]:
    """Where each tensor begins, one after another."""
    return [0, *itertools.accumulate(map(len, tensors))][:-1]


def lend(draw: Draw) -> list[Any]:
    """Arguments of lend."""
    dtype = draw.choice(TYPES)
    return [draw.pieces(draw.tensor(draw.choice(SIZES), dtype)), draw.choice((dtype, *TYPES))]


def gather(draw: Draw) -> list[Any]:
    """Arguments of gather."""
    flat = draw.tensor(draw.choice(SIZES), torch.float32)
    gradients = draw.pieces(flat.to(draw.choice(TYPES)))
    return [flat, gradients, places(gradients)]


def touched(draw: Draw) -> list[Any]:
    """Arguments of touched."""
    parameters = draw.pieces(draw.tensor(draw.choice(SIZES), torch.float32))
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if draw.random() < 0.8 else None
    gradients = [p if p.grad is None else p.grad for p in parameters]
    versions = [each._version for each in gradients]
    return [parameters, gradients, versions, [each.data_ptr() for each in gradients]]


def show(draw: Draw) -> list[Any]:
    """Arguments of show."""
    flat = draw.tensor(draw.choice(SIZES), torch.float32)
    parameters = draw.pieces(flat)
    return [parameters, flat, places(parameters)]


def several(draw: Draw) -> list[Any]:
    """Arguments of fit and of apart: tensors, some of which overlap."""
    flat = draw.tensor(draw.choice(SIZES), torch.float32)
    return [[*draw.pieces(flat), *([flat, flat[1:]] if draw.random() < 0.5 else [])]]


def finite(draw: Draw) -> list[Any]:
    """Arguments of finite."""
    count = draw.randrange(1, 4)  # of none, torch does not know the device
    return [[draw.tensor(draw.choice(SIZES), draw.choice(TYPES)) for _ in range(count)]]


def spread(draw: Draw) -> list[Any]:
    """Arguments of spread."""
    numel = draw.choice(SIZES)
    indices = [draw.indices(draw.randrange(50), numel) for _ in range(draw.randrange(4))]
    values = [draw.tensor(len(each), torch.float32) for each in indices]
    return [draw.pieces(draw.tensor(numel, torch.float32)), indices, values, draw.number()]


def step(draw: Draw) -> list[Any]:
    """Arguments of step."""
    numel = draw.choice(SIZES)
    tensors = [draw.tensor(numel, torch.float32) for _ in range(3)]
    return [*tensors, *(draw.number() for _ in range(3)), draw.random() < 0.5]


def apply(draw: Draw) -> list[Any]:
    """Arguments of apply: a sparse mean, or a dense one."""
    numel = draw.choice(SIZES)
    parameters = draw.pieces(draw.tensor(numel, torch.float32))
    steps = [draw.randrange(len(Step)) for _ in parameters]
    pairs = zip(parameters, steps, strict=True)
    buffers = [each.clone() for each, step in pairs if Step(step).has_buffer]
    settings = [draw.number() for _ in range(SETTINGS * len(parameters))]
    if draw.random() < 0.3:
        return [parameters, buffers, steps, settings, [], [], 1.0, torch.ones(numel)]
    indices = [draw.indices(draw.randrange(50), numel) for _ in range(draw.randrange(4))]
    values = [draw.tensor(len(each), torch.float32) for each in indices]
    return [parameters, buffers, steps, settings, indices, values, draw.number(), None]


def cosine(draw: Draw) -> list[Any]:
    """Arguments of ``torch.ops.dgc.cosine``."""
    height, width = (draw.choice((1, 2, 3, 8, 16, 17, 36, 64, 128)) for _ in range(2))
    across = draw.choice((1, 1, 2, 3))
    numel = height * width * across * draw.choice((0, 1, 2))
    source = draw.tensor(numel, torch.float32)
    sides = (draw.tensor(side * side, torch.float64).view(side, side) for side in (height, width))
    return [source, torch.empty(numel), across, *sides, draw.random() < 0.5]


def in_order(draw: Draw) -> list[Any]:
    """Arguments of in_order."""
    return [draw.indices(draw.randrange(50), 1000), 1000]


def encode(draw: Draw) -> list[Any]:
    """Arguments of linear_encode."""
    values = draw.tensor(draw.choice(SIZES), torch.float32)
    return [values, draw.choice((2, 4, 8)), draw.choice((1, 64, 128, 256, 100_000))]


def qsgd_encode(draw: Draw) -> list[Any]:
    """Arguments of qsgd_encode."""
    return [*encode(draw), draw.getrandbits(32), draw.getrandbits(32)]


def linear_decode(draw: Draw) -> list[Any]:
    """Arguments of linear_decode: random bytes of the right length."""
    values, bits, block = encode(draw)
    count = len(values)
    length = 4 * -(-count // block) - (-count * bits // 8)
    return [draw.tensor(length, torch.uint8, 256), count, bits, block]


def elias_fano_encode(draw: Draw) -> list[Any]:
    """Arguments of elias_fano_encode."""
    low = draw.randrange(40)
    numel = draw.randrange(1, 1 << min(low + 14, 62))
    return [draw.indices(draw.randrange(80), numel), numel, low]


def elias_fano_decode(draw: Draw) -> list[Any]:
    """Arguments of elias_fano_decode: what was encoded, or random bytes."""
    indices, numel, low = elias_fano_encode(draw)
    section = torch.ops.dgc.elias_fano_encode(indices, numel, low)
    if draw.random() < 0.5:
        section = draw.tensor(len(section), torch.uint8, 256)
    return [section, numel, len(indices), low]


def is_even(draw: Draw) -> list[Any]:
    """Arguments of is_even: indices that are spread evenly, or that ascend in any other way."""
    indices, numel, chunk, _ = even_encode(draw)
    if draw.random() < 0.5:
        chosen = sorted(draw.sample(range(numel), len(indices)))
        indices = torch.tensor(chosen, dtype=torch.int64)
    return [indices, numel, chunk]


def even_encode(draw: Draw) -> list[Any]:
    """Arguments of even_encode: indices that are spread evenly."""
    numel, chunk = draw.randrange(1, 20_000), draw.choice((1, 7, 64, 1000, 4096))
    count = draw.randrange(min(numel, 300) + 1)
    chosen = [
        begin + place
        for begin, size, held in even.chunks_of(numel, count, chunk)
        for place in sorted(draw.sample(range(size), held))
    ]
    indices = torch.tensor(chosen, dtype=torch.int64)
    return [indices, numel, chunk, even.length(numel, count, chunk)]


def even_decode(draw: Draw) -> list[Any]:
    """Arguments of even_decode: what was encoded, or random bytes."""
    indices, numel, chunk, length = even_encode(draw)
    section = torch.ops.dgc.even_encode(indices, numel, chunk, length)
    if draw.random() < 0.5:
        section = draw.tensor(length, torch.uint8, 256)
    return [section, numel, len(indices), chunk]


OPERATORS: dict[str, Callable[[Draw], list[Any]]] = {
    'accumulate': accumulate,
    'sample': sample,
    'collect': collect,
    'finite': finite,
    'lend': lend,
    'gather': gather,
    'touched': touched,
    'show': show,
    'fit': several,
    'apart': several,
    'spread': spread,
    'step': step,
    'apply': apply,
    'in_order': in_order,
    'cosine': cosine,
    'linear_encode': encode,
    'qsgd_encode': qsgd_encode,
    'linear_decode': linear_decode,
    'elias_fano_encode': elias_fano_encode,
    'elias_fano_decode': elias_fano_decode,
    'is_even': is_even,
    'even_encode': even_encode,
    'even_decode': even_decode,
}


def spoil(draw: Draw, arguments: list[Any]) -> None:
    """Replace one argument by one that, mostly, does not fit."""
    place = draw.randrange(len(arguments))
    old = arguments[place]
    if isinstance(old, Tensor):
        arguments[place] = draw.spoiled(old)
    elif isinstance(old, list) and old:
        inner = draw.randrange(len(old))
        was = old[inner]
        spoilt = draw.spoiled(was) if isinstance(was, Tensor) else draw.like(was)
        arguments[place] = [*old[:inner], spoilt, *old[inner + 1 :]]
    elif isinstance(old, bool | list) or old is None:
        return
    elif isinstance(old, int):
        arguments[place] = draw.whole()
    else:
        arguments[place] = draw.number()


def is_affordable(name: str, arguments: list[Any]) -> bool:
    """Return whether a call that succeeds needs little memory, or so much that it fails at once."""
    if name == 'even_decode':
        return not MOST < 8 * arguments[2] < 1 << 55
    if name != 'elias_fano_encode':
        return True
    _, numel, low = arguments
    unary = numel >> low if 0 <= low < 64 else 0
    return unary <= 8 * MOST or unary > 1 << 55


def fuzz(seed: int, seconds: float) -> Counter[str]:
    """Call operators for ``seconds``; return how many calls returned and how many raised."""
    counts: Counter[str] = Counter()
    end, call = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        draw = Draw(f'{seed} {call}')
        call += 1
        name = draw.choice([*OPERATORS])
        arguments = OPERATORS[name](draw)
        for _ in range(draw.choice((0, 0, 1, 1, 2))):
            spoil(draw, arguments)
        if not is_affordable(name, arguments):
            continue
        try:
            getattr(torch.ops.dgc, name)(*arguments)
            counts['returned'] += 1
        except (RuntimeError, IndexError):
            counts['raised'] += 1
    return counts


def main(argv: Sequence[str]) -> int:
    """Fuzz, and print how many calls were made; return the exit code."""
    parser = Parser(PROGRAM, 'Call every C++ operator with random arguments, for some seconds.')
    parser.add_argument('--seconds', type=float, default=60.0, help='how long (60)')
    parser.add_argument('--seed', type=int, default=0, help='of the arguments (0)')
    arguments: argparse.Namespace = parser.parse_args(argv)
    if not native.load():
        parser.error('the kernels are not compiled: python -m dgc.ops.build')
    counts = fuzz(arguments.seed, arguments.seconds)
    print(f'{counts.total():,} calls: {counts["returned"]:,} returned, {counts["raised"]:,} raised')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
