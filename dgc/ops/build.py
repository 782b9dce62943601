"""Compile the C++ kernels: ``python -m dgc.ops.build``, which the set-up runs.

The library is written to ``${XDG_CACHE_HOME:-~/.cache}/dgc/ops``, in a folder whose name
hashes the sources, flags and torch version, and is loaded from there by every environment with the
same torch. It contains each loop compiled for several instruction sets and picks one at load time,
so machines with different processors may share a cache.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / 'csrc'
# Contraction would round a product and a sum once; PyTorch, the reference, rounds both.
FLAGS = ['-O3', '-std=c++20', '-fPIC', '-fopenmp', '-ffp-contract=off', '-Wall']
AVX2 = ['-mavx2', '-mf16c']
AVX512 = [*AVX2, '-mavx512f', '-mavx512bw', '-mavx512vl', '-mavx512dq']
INSTRUCTION_SETS = {
    'baseline': [],
    'avx2': AVX2,
    'avx512': [*AVX512, '-mprefer-vector-width=512'],
}
TIMEOUT = 600  # seconds per file, which usually takes ten


class BuildError(RuntimeError):
    """The kernels could not be compiled on this machine."""


def is_x86() -> bool:
    """Return whether this is an x86-64 processor; only there AVX2 and AVX-512 are compiled."""
    return platform.machine() in ('x86_64', 'AMD64')


def library_path() -> Path:
    """Return the path of the library for these sources, this torch and this machine.

    It may not be built yet.
    """
    digest = hashlib.sha256(repr((FLAGS, INSTRUCTION_SETS)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    key = f'torch-{torch.__version__}-{platform.machine()}-{digest.hexdigest()[:16]}'
    cache = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache')
    return cache / 'dgc' / 'ops' / key / 'libdgc_ops.so'


def build(compiler: str | None = None) -> Path:
    """Compile the library unless it exists.

    Args:
        compiler: a program; by default ``$CXX``, g++ or c++.

    Returns:
        The path of the library.

    Raises:
        BuildError: there is no compiler, it failed, or the cache cannot be written.
    """
    target = library_path()
    if target.exists():
        return target
    compiler = compiler or os.environ.get('CXX') or shutil.which('g++') or shutil.which('c++')
    if compiler is None:
        raise BuildError('no C++ compiler was found (Debian: g++)')
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            library = _compile(compiler, Path(scratch))
            library.replace(target)  # atomic: another process must not load half of it
    except OSError as error:
        raise BuildError(f'{error} (set XDG_CACHE_HOME or CXX)') from error
    return target


def _compile(compiler: str, scratch: Path) -> Path:
    """Compile the object files and link the library in the folder ``scratch``; returns its path."""
    torch_folder = Path(torch.__file__).parent
    flags = [*FLAGS, '-DDGC_X86'] if is_x86() else FLAGS
    sets = INSTRUCTION_SETS if is_x86() else {'baseline': []}
    include = ['-isystem', str(torch_folder / 'include')]
    jobs = [('kernels', name, [*options, f'-DDGC_ISA={name}']) for name, options in sets.items()]
    jobs += [(name, name, include) for name in ('bindings', 'codec', 'elias_fano')]
    objects = []
    for source, name, options in jobs:
        objects.append(str(scratch / f'{name}.o'))
        path = str(SOURCES / f'{source}.cpp')
        _run([compiler, *flags, *options, '-c', path, '-o', objects[-1]])
    library = scratch / 'libdgc_ops.so'
    link = ['-L', str(torch_folder / 'lib'), '-ltorch_cpu', '-lc10', '-o', str(library)]
    _run([compiler, '-shared', '-fopenmp', *objects, *link])
    return library


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f'{command[0]} took more than {TIMEOUT} s') from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if 'error' in line] or ['no message']
        raise BuildError(f'{command[0]} failed: {lines[0]}')


def main() -> int:
    """Build and print the path; returns 1 with one line of explanation on failure."""
    known = library_path().exists()
    if not known:
        print('Compiling the fused kernels (once, about 30 s)', flush=True)
    try:
        path = build()
    except BuildError as error:
        print(f'The fused kernels cannot be compiled: {error}. Training works without them, in '
              'plain PyTorch, several times slower.', file=sys.stderr)  # fmt: skip
        return 1
    if not known:
        print(f'Compiled the fused kernels into {path.parent}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
