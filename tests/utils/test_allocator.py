"""Freed memory is kept: seen by the pages that have to be mapped again."""

import platform
import subprocess
import sys

import pytest

from utils.allocator import keep_freed_memory

PROGRAM = """
import resource, sys
from utils.allocator import keep_freed_memory

if sys.argv[1] == 'kept':
    assert keep_freed_memory()
faults = 0
for _ in range(3):
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(64 * 2**20)
    block[::4096] = bytes(len(block) // 4096)
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


def faults(how: str) -> int:
    """Pages that were mapped anew for the third block of 64 MiB, in a process of its own."""
    run = [sys.executable, '-c', PROGRAM, how]
    return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='it is a setting of glibc')
def test_freed_memory_is_not_mapped_again():
    assert faults('kept') < 10 < faults('as usual')


def test_without_such_a_setting_it_says_so(monkeypatch):
    monkeypatch.setattr('ctypes.CDLL', lambda _: object())
    assert keep_freed_memory() is False
