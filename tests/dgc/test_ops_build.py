"""Compiling the kernels: where that fails, one line says why and everything still works."""

import shutil

import pytest

from dgc.ops import build, native


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.delenv('CXX', raising=False)


def script(folder, text):
    """An executable that does ``text`` in place of a compiler."""
    path = folder / 'compiler'
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)
    return str(path)


def test_the_library_has_a_place_of_its_own_for_every_source(tmp_path, monkeypatch):
    before = build.library_path()
    assert before.is_relative_to(tmp_path / 'cache' / 'dgc' / 'ops')
    shutil.copytree(build.SOURCES, tmp_path / 'csrc')
    monkeypatch.setattr(build, 'SOURCES', tmp_path / 'csrc')
    assert build.library_path() == before
    with (tmp_path / 'csrc' / 'kernels.cpp').open('a') as source:
        source.write('// changed\n')
    assert build.library_path() != before


def test_a_compiler_that_fails_is_told_by_its_first_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('CXX', script(tmp_path, 'echo "a.cpp:1: error: no" >&2; exit 1'))
    assert build.main() == 1
    assert 'failed: a.cpp:1: error: no. Training works without them' in capsys.readouterr().err
    assert not build.library_path().exists()
    assert list(build.library_path().parent.iterdir()) == []  # nothing half made stays


@pytest.mark.parametrize('compiler', ['/nowhere/g++', None])
def test_no_compiler_is_told(compiler, monkeypatch):
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    with pytest.raises(build.BuildError, match=r'No such file|no C\+\+ compiler'):
        build.build(compiler)


def test_a_cache_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    with pytest.raises(build.BuildError, match='set XDG_CACHE_HOME'):
        build.build('/bin/true')


def test_what_is_there_is_not_compiled_again():
    path = build.library_path()
    path.parent.mkdir(parents=True)
    path.touch()
    assert build.build('/nowhere/g++') == path


def test_a_library_that_cannot_be_loaded_is_named_and_done_without(caplog):
    path = build.library_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(b'cut off')
    assert not native.load()
    assert f'delete {path}' in caplog.text
