"""Compile the C++ kernels: ``python -m dgc.ops.build``, or at their first use (``on_demand``).

The library is written to ``${XDG_CACHE_HOME:-~/.cache}/dgc/ops``, or where that cannot be used
to a folder of this user below the temporary one. The name of its own folder hashes the sources,
flags and torch version, and every environment with the same torch loads it from there. It contains
each loop compiled for several instruction sets and picks one at load time, so machines with
different processors may share a cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from dgc.ops.cache import CacheError, cache_folders, check_trusted, make_trusted

log = logging.getLogger('dgc')

SOURCES = Path(__file__).parent / 'csrc'
# Contraction would round a product and a sum once wherever the compiler likes. PyTorch, the
# reference, does so in some operations only, which are written as ``std::fma``.
FLAGS = ['-O3', '-std=c++20', '-fPIC', '-fopenmp', '-ffp-contract=off', '-Wall']
AVX2 = ['-mavx2', '-mf16c', '-mfma']
AVX512 = [*AVX2, '-mavx512f', '-mavx512bw', '-mavx512vl', '-mavx512dq']
INSTRUCTION_SETS = {
    'baseline': [],
    'avx2': AVX2,
    'avx512': [*AVX512, '-mprefer-vector-width=512'],
}
# Sources that are compiled for each of them, with further flags. Nothing is rounded in the cosine
# transform, so products and sums may be contracted there.
LOOPS = {'kernels': [], 'updates': [], 'cosine_loop': ['-ffp-contract=fast']}
TIMEOUT = 600  # seconds per file, which usually takes ten


class BuildError(RuntimeError):
    """The kernels could not be compiled on this machine."""


def is_x86() -> bool:
    """Return whether this is an x86-64 processor; only there AVX2 and AVX-512 are compiled."""
    return platform.machine() in ('x86_64', 'AMD64')


def abi_flags() -> list[str]:
    """Return the flags for the C++ library's types that torch was built with.

    torch's packages up to 2.6 use the ones from before C++11 (``std::string``).
    """
    return [f'-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}']


def library_paths() -> dict[Path, Path]:
    """Return the paths of the library for these sources, this torch and this machine.

    There is one in each folder for caches, best first: folder → path. It may not be built yet.
    """
    digest = hashlib.sha256(repr((FLAGS, INSTRUCTION_SETS, LOOPS)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    key = f'torch-{torch.__version__}-{platform.machine()}-{digest.hexdigest()[:16]}'
    return {cache: cache / 'dgc' / 'ops' / key / 'libdgc_ops.so' for cache in cache_folders()}


def find() -> tuple[Path | None, list[str]]:
    """Return the path of the library that may be loaded, if any, and why others may not be."""
    problems = []
    for cache, path in library_paths().items():
        try:
            check_trusted(path, cache)
        except FileNotFoundError:
            continue
        except CacheError as error:
            problems.append(f'{path} is not loaded, since {error}')
        except OSError as error:
            problems.append(f'{cache} cannot be read ({error.strerror})')
        else:
            return path, problems
    return None, problems


def build(compiler: str | None = None) -> Path:
    """Compile the library unless it exists.

    Args:
        compiler: a program with options, such as ``g++ -m64``; by default ``$CXX``, g++ or c++.

    Returns:
        The path of the library.

    Raises:
        BuildError: there is no compiler, it failed, or no cache can be written.
    """
    found, _ = find()
    if found is not None:
        return found
    command, problems = compiler_command(compiler), []
    for cache, target in library_paths().items():
        try:
            make_trusted(target.parent, cache)
        except (OSError, CacheError) as error:
            problems.append(str(error))
            continue
        try:
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                library = _compile(command, Path(scratch))
                library.replace(target)  # atomic: another process must not load half of it
        except OSError as error:
            raise BuildError(f'{error} (set XDG_CACHE_HOME or CXX)') from error
        if problems:
            log.warning('dgc: %s is used, since %s', cache, '; '.join(problems))
        return target
    raise BuildError(f'{"; ".join(problems)} (set XDG_CACHE_HOME)')


def compiler_command(compiler: str | None = None) -> list[str]:
    """Return the words that start a compiler: ``compiler``, else ``$CXX``, g++ or c++.

    Raises:
        BuildError: there is none, or its quotation marks do not match.
    """
    text = compiler or os.environ.get('CXX', '').strip()
    if not text:
        path = shutil.which('g++') or shutil.which('c++')
        if path is None:
            raise BuildError('no C++ compiler was found (Debian: g++)')
        return [path]
    if Path(text).is_file():  # a path may have spaces in it
        return [text]
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BuildError(f'CXX={text!r} cannot be split into words: {error}') from error


def _compile(compiler: list[str], scratch: Path) -> Path:
    """Compile the object files and link the library in the folder ``scratch``; returns its path."""
    torch_folder = Path(torch.__file__).parent
    flags = [*FLAGS, *abi_flags(), *(['-DDGC_X86'] if is_x86() else [])]
    sets = INSTRUCTION_SETS if is_x86() else {'baseline': []}
    include = ['-isystem', str(torch_folder / 'include')]
    jobs = [
        (source, f'{source}-{name}', [*options, *extra, f'-DDGC_ISA={name}'])
        for source, extra in LOOPS.items()
        for name, options in sets.items()
    ]
    plain = ('bindings', 'codec', 'cosine', 'elias_fano', 'even', 'gradients')
    jobs += [(name, name, include) for name in plain]
    objects = []
    for source, name, options in jobs:
        objects.append(str(scratch / f'{name}.o'))
        path = str(SOURCES / f'{source}.cpp')
        _run([*compiler, *flags, *options, '-c', path, '-o', objects[-1]])
    library = scratch / 'libdgc_ops.so'
    link = ['-L', str(torch_folder / 'lib'), '-ltorch_cpu', '-lc10', '-o', str(library)]
    _run([*compiler, '-shared', '-fopenmp', *objects, *link])
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
    known = find()[0] is not None
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
