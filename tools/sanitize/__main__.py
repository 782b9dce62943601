"""Test and fuzz the C++ kernels under sanitizers: ``python -m tools.sanitize --help``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dgc.ops.build import BuildError
from tools.harness.cli import Parser, log, report
from tools.sanitize.build import VARIANT, VARIANTS, environment

PROGRAM = 'tools.sanitize'
ROOT = Path(__file__).parents[2]
TESTS = ('tests/dgc/test_ops_native.py', 'tests/dgc/test_sgd.py', 'tests/dgc/test_codec_damaged.py')
FAILED = 1


def commands(variant: str, seconds: float, seed: int) -> list[tuple[str, list[str]]]:
    """Return what is run for one build: a line about it, and its command."""
    compile_ = 'from tools.sanitize import build as b; b.build.build()'
    pytest = ['-m', 'pytest', '-q', '-x', '-p', 'tools.sanitize.build', '-p', 'no:cacheprovider']
    fuzz = ['-m', 'tools.sanitize.fuzz', '--seconds', str(seconds), '--seed', str(seed)]
    return [
        (f'{variant}: compiling, once', ['-c', compile_]),
        (f'{variant}: tests of the kernels and codecs', [*pytest, *TESTS]),
        (f'{variant}: random calls for {seconds:g} s, seed {seed}', fuzz),
    ]


def main(argv: Sequence[str]) -> int:
    """Run everything, one after another; return the exit code."""
    parser = Parser(
        PROGRAM,
        'Test and fuzz the C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer, in '
        'two builds: for this processor, and without AVX.',
        'Exit codes: 0 clean, 1 something was found, 2 the sanitizers are missing.',
    )
    parser.add_argument('--seconds', type=float, default=60.0, help='of the fuzz, in all (60)')
    parser.add_argument('--seed', type=int, default=0, help='of the fuzz (0)')
    arguments = parser.parse_args(argv)
    for variant in VARIANTS:
        try:
            preloaded = environment(variant)
        except BuildError as error:
            parser.error(str(error))
        share = arguments.seconds / len(VARIANTS)
        for number, (line, command) in enumerate(commands(variant, share, arguments.seed)):
            log(line)
            # A compiler under the sanitizers would be tested itself.
            used = preloaded if number else {**os.environ, VARIANT: variant}
            done = subprocess.run([sys.executable, *command], cwd=ROOT, env=used)
            if done.returncode:
                report(PROGRAM, f'{line}: exit code {done.returncode}, see above')
                return FAILED
    print('clean: no memory error and no undefined behaviour was found')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
