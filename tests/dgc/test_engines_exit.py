"""The end of a process whose program closes no engine.

A thread of the process group that releases a tensor, or returns from a request to the store, while
the interpreter shuts down ends the process by SIGABRT. It did so once in a program of ``mp.spawn``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from dgc.engines.jobs import JobThread

PROGRAM = """
import atexit, collections, json, os, threading

def report():  # registered before others, so called after them
    tasks = os.listdir('/proc/self/task')
    names = [open(f'/proc/self/task/{task}/comm').read().strip() for task in tasks]
    own = [each.name for each in threading.enumerate() if each.name.startswith('dgc')]
    print(json.dumps([names.count('pt_gloo_runloop'), own]))

atexit.register(report)
import torch, torch.distributed as dist
from dgc.engines.torch_distributed import TorchEngine

dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
engine = TorchEngine()
engine.all_reduce(torch.ones(3))
if {destroyed}:
    dist.destroy_process_group()
"""


@pytest.mark.parametrize('destroyed', [False, True])
def test_no_thread_is_left_of_an_engine_that_is_not_closed(destroyed, warm_python):
    program = PROGRAM.replace('{destroyed}', str(destroyed))
    ended = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    default_group = 0 if destroyed else 2  # its threads are the program's
    assert ended.stdout == f'[{default_group}, []]\n'


def test_an_engine_in_a_call_that_hangs_does_not_delay_the_end():
    thread, hang = JobThread('test'), threading.Event()
    thread.submit(hang.wait)
    start = time.monotonic()
    assert not thread.end(seconds=0.1)
    assert time.monotonic() - start < 10
    hang.set()
    assert thread.end(seconds=None)
