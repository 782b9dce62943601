"""The kernels compile at their first use: once, whoever asks, and not again where that failed."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from dgc.ops import build, native
from dgc.ops.build import BuildError
from dgc.ops.on_demand import FAILED, build_once


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    for name in ('CXX', 'DGC_BUILD'):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def links(monkeypatch) -> list[list[str]]:
    """Compilers succeed slowly and write no library; the list receives the commands that link."""
    commands: list[list[str]] = []

    def run(command, **_):
        if '-shared' in command:
            commands.append(command)
            time.sleep(0.05)
        Path(command[command.index('-o') + 1]).touch()
        return subprocess.CompletedProcess(command, 0, '', '')

    monkeypatch.setattr(build.subprocess, 'run', run)
    return commands


def broken_compiler(path: Path) -> str:
    """A compiler that fails, and counts how often it was called in a file beside it."""
    path.write_text('#!/bin/sh\necho again >>"$0.calls"\necho "a.cpp:1: error: no" >&2\nexit 1\n')
    path.chmod(0o755)
    return str(path)


def test_ranks_that_start_together_compile_once(links, caplog):
    paths: list[Path] = []
    ranks = [threading.Thread(target=lambda: paths.append(build_once())) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert len(links) == 1
    assert len(paths) == 4 and set(paths) == {build.find()[0]}
    assert caplog.messages == ['dgc: compiling the fused kernels, once: about half a minute']


def test_what_is_needed_is_compiled_and_loaded(links, caplog):
    assert not native.load()  # an empty file, which is no library
    assert len(links) == 1
    assert 'cannot be loaded' in caplog.messages[-1]


def test_a_compiler_that_failed_is_not_tried_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv('CXX', broken_compiler(tmp_path / 'first'))
    for _ in range(3):
        assert not native.load()
    assert (tmp_path / 'first.calls').read_text().count('again') == 1
    failed = next(iter(build.library_paths().values())).parent / FAILED
    assert caplog.messages[1].endswith('first failed: a.cpp:1: error: no')
    assert caplog.messages[2].endswith(f'error: no (delete {failed} to try again)')
    monkeypatch.setenv('CXX', broken_compiler(tmp_path / 'second'))
    with pytest.raises(BuildError, match='second failed'):
        build_once()


def test_without_a_compiler_the_reason_is_said_and_nothing_is_left(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(build.shutil, 'which', lambda name: None)
    assert not native.load()
    (line,) = caplog.messages
    assert line == f'dgc: {native.PLAINLY}: no C++ compiler was found (Debian: g++)'
    assert not (tmp_path / 'cache').exists()


def test_compiling_can_be_switched_off(links, monkeypatch):
    monkeypatch.setenv('DGC_BUILD', '0')
    with pytest.raises(BuildError, match=r'DGC_BUILD=0 is set: `python -m dgc.ops.build`'):
        build_once()
    assert links == []


def test_where_no_folder_can_be_locked_the_library_is_compiled_all_the_same(links, monkeypatch):
    def refuse(*_):
        raise OSError(38, 'Function not implemented')

    monkeypatch.setattr('dgc.ops.on_demand.fcntl.flock', refuse)
    assert build_once() == build.find()[0]


def test_a_full_disk_is_no_fault_of_the_compiler(monkeypatch, tmp_path, caplog):
    """It ends no training, and the next process tries again."""

    def fill(*_):
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patched:
        patched.setattr(build, '_compile', fill)
        assert not native.load()
    assert 'No space left on device' in caplog.messages[-1]
    assert not list(tmp_path.rglob(FAILED))


def test_a_note_that_cannot_be_written_ends_no_training(monkeypatch, tmp_path):
    monkeypatch.setenv('CXX', broken_compiler(tmp_path / 'first'))
    written = Path.write_text

    def write(path, *words, **settings):
        if path.name == FAILED:
            raise OSError(28, 'No space left on device')
        return written(path, *words, **settings)

    monkeypatch.setattr(Path, 'write_text', write)
    assert not native.load()
