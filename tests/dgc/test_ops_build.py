"""Compiling the kernels: where that fails, one line says why and everything still works."""

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from dgc.ops import build, cache, native


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.delenv('CXX', raising=False)
    monkeypatch.setenv('DGC_BUILD', '0')  # tests/dgc/test_ops_on_demand.py is about the others
    (tmp_path / 'tmp').mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'tmp'))


def library_path() -> Path:
    """The path in the first cache."""
    return next(iter(build.library_paths().values()))


def library() -> Path:
    """A file, which is no library, at the path in the first cache."""
    path = library_path()
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def compiles(monkeypatch) -> list[list[str]]:
    """Let any compiler succeed; the list receives its commands."""
    commands = []

    def run(command, **_):
        commands.append(command)
        Path(command[command.index('-o') + 1]).touch()
        return subprocess.CompletedProcess(command, 0, '', '')

    monkeypatch.setattr(build.subprocess, 'run', run)
    return commands


def script(folder, text):
    """An executable that does ``text`` in place of a compiler."""
    path = folder / 'compiler'
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)
    return str(path)


def test_the_library_has_a_place_of_its_own_for_every_source(tmp_path, monkeypatch):
    before = library_path()
    assert before.is_relative_to(tmp_path / 'cache' / 'dgc' / 'ops')
    shutil.copytree(build.SOURCES, tmp_path / 'csrc')
    monkeypatch.setattr(build, 'SOURCES', tmp_path / 'csrc')
    assert library_path() == before
    with (tmp_path / 'csrc' / 'kernels.cpp').open('a') as source:
        source.write('// changed\n')
    assert library_path() != before


def test_a_compiler_that_fails_is_told_by_its_first_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('CXX', script(tmp_path, 'echo "a.cpp:1: error: no" >&2; exit 1'))
    assert build.main() == 1
    assert 'failed: a.cpp:1: error: no. Training works without them' in capsys.readouterr().err
    assert not library_path().exists()
    assert list(library_path().parent.iterdir()) == []  # nothing half made stays


@pytest.mark.parametrize('compiler', ['/nowhere/g++', None])
def test_no_compiler_is_told(compiler, monkeypatch):
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    with pytest.raises(build.BuildError, match=r'No such file|no C\+\+ compiler'):
        build.build(compiler)


@pytest.mark.parametrize('variable', ['XDG_CACHE_HOME', 'HOME'])
def test_a_cache_that_cannot_be_used_is_replaced_by_a_private_one(
    variable, tmp_path, monkeypatch, caplog
):
    """failures row 15: a container's --user, whose home is another's."""
    monkeypatch.delenv('XDG_CACHE_HOME')
    (tmp_path / 'file').touch()  # root may read every folder, but no file is a folder
    monkeypatch.setenv(variable, str(tmp_path / 'file'))
    compiles(monkeypatch)
    path = build.build()
    private = tmp_path / 'tmp' / f'dgc-cache-{os.geteuid()}'
    assert path.is_relative_to(private)
    (line,) = caplog.messages
    assert f'{private} is used, since' in line and str(tmp_path / 'file') in line
    assert build.find()[0] == path


def test_a_cache_that_cannot_be_read_is_done_without_in_one_line(monkeypatch, caplog):
    """failures row 15."""
    path = library()
    real = Path.resolve

    def resolve(self, strict=False):
        if self == path:
            raise PermissionError(13, 'Permission denied', str(self))
        return real(self, strict)

    monkeypatch.setattr(Path, 'resolve', resolve)
    assert not native.load()
    (line,) = caplog.messages
    assert line.startswith('dgc: compressing in plain PyTorch, several times slower: ')
    assert line.endswith(f': {path.parents[3]} cannot be read (Permission denied)')


def test_without_a_home_the_private_folder_is_used(tmp_path, monkeypatch):
    """failures row 15: HOME unset, and no entry in the password file."""
    for name in ('XDG_CACHE_HOME', 'HOME'):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, 'getpwuid', lambda _: {}['no such user'])
    private = tmp_path / 'tmp' / f'dgc-cache-{os.geteuid()}'
    assert list(cache.cache_folders()) == [private]
    assert not native.load()
    compiles(monkeypatch)
    assert build.build().is_relative_to(private)


def test_where_no_folder_can_be_used_one_line_says_so(tmp_path, monkeypatch, capsys):
    """failures row 15."""
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'file'))
    assert build.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert '(set XDG_CACHE_HOME). Training works without them' in line


@pytest.mark.parametrize('level', range(5), ids=['library', 'key', 'ops', 'dgc', 'cache'])
def test_a_library_that_every_user_can_write_is_not_loaded(level, caplog):
    """failures row 15."""
    path = library()
    place = (path, *path.parents)[level]
    place.chmod(place.stat().st_mode | stat.S_IWOTH)
    assert build.find()[0] is None
    assert not native.load()
    assert f'{path} is not loaded, since {place} can be written by every user' in caplog.text


def test_a_sticky_cache_such_as_tmp_may_be_written_by_every_user():
    path = library()
    path.parents[3].chmod(0o1777)
    assert build.find() == (path, [])


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give a file to another user')
@pytest.mark.parametrize('level', range(4), ids=['library', 'key', 'ops', 'dgc'])
def test_a_library_of_another_user_is_not_loaded(level, caplog):
    """failures row 15."""
    path = library()
    place = (path, *path.parents)[level]
    os.chown(place, 12345, -1)
    assert not native.load()
    assert f'since {place} belongs to another user (number 12345)' in caplog.text


def test_a_library_behind_a_link_is_checked_where_it_is(tmp_path):
    """failures row 15."""
    path = library()
    elsewhere = tmp_path / 'elsewhere'
    path.parents[2].rename(elsewhere)
    path.parents[2].symlink_to(elsewhere)
    assert build.find() == (path, [])
    elsewhere.chmod(0o777)
    assert build.find()[0] is None


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('g++ -m64', ['g++', '-m64']),
        ('ccache g++', ['ccache', 'g++']),
        ("'/opt/my tools/g++' -m64", ['/opt/my tools/g++', '-m64']),
        (' g++ ', ['g++']),
    ],
)
def test_a_compiler_may_come_with_options(text, words, monkeypatch):
    """failures row 16."""
    monkeypatch.setenv('CXX', text)
    commands = compiles(monkeypatch)
    build.build()
    assert commands and all(command[: len(words)] == words for command in commands)


def test_a_compiler_whose_path_has_a_space_is_one_word(tmp_path, monkeypatch):
    """failures row 16."""
    (tmp_path / 'my tools').mkdir()
    path = script(tmp_path / 'my tools', 'exit 0')
    monkeypatch.setenv('CXX', path)
    assert build.compiler_command() == [path]


def test_quotation_marks_of_cxx_must_match(monkeypatch):
    """failures row 16."""
    monkeypatch.setenv('CXX', "g++ '-m64")
    with pytest.raises(build.BuildError, match=r'CXX=.*cannot be split into words'):
        build.build()


def test_what_is_there_is_not_compiled_again():
    path = library()
    assert build.build('/nowhere/g++') == path


def test_a_library_that_cannot_be_loaded_is_named_and_done_without(caplog):
    path = library()
    path.write_bytes(b'cut off')
    assert not native.load()
    assert f'delete {path}' in caplog.text
