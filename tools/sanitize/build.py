"""Builds of the C++ kernels with sanitizers, in this process alone.

Also a plugin of pytest, which makes its process use such a build: ``-p tools.sanitize.build``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from dgc.ops import build

VARIANT = 'DGC_SANITIZED'  # environment: which build a child process uses
# The second has the loops that processors without AVX use.
VARIANTS = ('fastest', 'baseline')
FLAGS = [
    '-O1', '-g', '-fno-omit-frame-pointer', '-fno-sanitize-recover=all',
    '-fsanitize=address,undefined,float-cast-overflow',
]  # fmt: skip
LIBRARIES = ('libasan.so', 'libubsan.so', 'libstdc++.so')


def choose(variant: str) -> None:
    """Make ``dgc.ops.build`` compile and load a build with sanitizers, in this process."""
    usual = [flag for flag in build.FLAGS if not flag.startswith('-O')]
    # The definition gives each variant a place of its own in the cache.
    build.FLAGS = [*usual, *FLAGS, f'-DDGC_SANITIZED_{variant.upper()}']
    if variant == 'baseline':
        build.is_x86 = lambda: False


def runtime(compiler: str) -> list[str]:
    """Return the paths of the sanitizers' libraries, which must be loaded before all others.

    Raises:
        BuildError: Where the compiler has none.
    """
    found = []
    for name in LIBRARIES:
        command = [compiler, f'-print-file-name={name}']
        try:
            path = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        except OSError as error:
            raise build.BuildError(f'{compiler} cannot be run: {error.strerror}') from error
        if not Path(path).is_absolute():  # the compiler returns the name where it has no such file
            raise build.BuildError(f'{compiler} has no {name}: use g++ 12 or newer (CXX=g++)')
        found.append(path)
    return found


def environment(variant: str) -> dict[str, str]:
    """Return the environment of a process that loads such a build. Raises BuildError."""
    compiler = os.environ.get('CXX') or shutil.which('g++') or 'g++'
    # Python and torch keep memory until the end, and free some of it twice as symbols go: only what
    # the kernels do is of interest. An allocation too large must fail, as it does without them.
    address = 'detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1'
    return {
        **os.environ,
        VARIANT: variant,
        'LD_PRELOAD': ':'.join(runtime(compiler)),
        'ASAN_OPTIONS': f'{address}:protect_shadow_gap=0:abort_on_error=0',
        'UBSAN_OPTIONS': 'print_stacktrace=1:halt_on_error=1',
        'OMP_NUM_THREADS': '2',
    }


if VARIANT in os.environ:
    choose(os.environ[VARIANT])
