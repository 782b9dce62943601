"""Programs of warm_server.py run as those of a Python of their own."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys

import pytest
import warm

NAME = 'import socket; print(socket.gethostname(), [name for _, name in socket.if_nameindex()])'


def run(words: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        words, env=os.environ | warm.environment(), capture_output=True, text=True, timeout=60,
        check=False, **options,
    )  # fmt: skip


def python(*words: str, **options) -> subprocess.CompletedProcess:
    return run(warm.warmed([sys.executable, *words]), **options)


def test_a_command_has_its_arguments_and_its_exit_code():
    done = python('-c', 'import sys; print(__name__, sys.argv); sys.exit(7)', 'a', '-b')
    assert (done.returncode, done.stdout) == (7, "__main__ ['-c', 'a', '-b']\n"), done.stderr


def test_a_program_that_ends_by_a_signal_ends_its_stand_in_by_it():
    done = python('-c', 'import os; os.kill(os.getpid(), 15)')
    assert done.returncode == -signal.SIGTERM


def test_the_limits_are_those_of_the_command():
    program = 'import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE))'
    expected = (8192, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, expected)  # noqa: E731
    assert python('-c', program, preexec_fn=limit).stdout == f'{expected}\n'


def test_torch_is_there_unless_an_isolated_python_is_asked_for():
    program = 'import sys; print("torch" in sys.modules, sys.flags.isolated)'
    assert python('-c', program).stdout == 'True 0\n'
    assert python('-I', '-c', program).stdout == 'False 1\n'


@pytest.mark.namespaces
def test_the_namespaces_are_those_of_the_command():
    (name,) = warm.warmed([sys.executable])
    script = 'echo elsewhere >/proc/sys/kernel/hostname; exec "$@"'
    done = run(['unshare', '--uts', '--net', 'sh', '-c', script, 'sh', name, '-c', NAME])
    assert done.stdout == "elsewhere ['lo']\n", done.stderr
    assert socket.gethostname() != 'elsewhere'
