"""Worlds of real processes: a failing case reports its ranks and does not spoil the next one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from worlds import LAUNCHERS, World, WorldError, Worlds

START = 'for rank in 0 1; do RANK=$rank {python} {server} "$2" & done; wait'


@pytest.fixture
def world(monkeypatch):
    """Two ranks that start at once."""
    server = Path(__file__).with_name('light_server.py')
    command = START.format(python=sys.executable, server=server)
    monkeypatch.setitem(LAUNCHERS, 'light', ['sh', '-c', command, 'sh'])
    world = World('light', 2)
    yield world
    world.close()


def rank_and_process(engine) -> tuple[int, int]:
    return engine.rank, os.getpid()


def fail_on_rank_1(engine, message: str) -> None:
    if engine.rank == 1:
        raise ValueError(message)
    engine.barrier()  # which rank 1 does not enter


def end_on_rank_0(engine) -> None:
    if engine.rank == 0:
        os._exit(7)
    engine.barrier()


def sleep_on_rank_0(engine) -> None:
    if engine.rank == 0:
        time.sleep(600)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ended(processes: list[int]) -> bool:
    """Whether all processes are gone, soon."""
    deadline = time.monotonic() + 20
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, processes))


def test_cases_run_in_the_same_processes_by_rank(world):
    first, again = (
        world.run('test_worlds:rank_and_process'),
        world.run('test_worlds:rank_and_process'),
    )
    assert first == again
    assert [rank for rank, _ in first] == [0, 1]
    assert os.getpid() not in {process for _, process in first}


@pytest.mark.parametrize(
    ('case', 'arguments', 'seconds', 'reports'),
    [
        ('fail_on_rank_1', ('on fire',), 60, ['rank 1: Traceback', 'ValueError: on fire', '[0]']),
        ('end_on_rank_0', (), 60, ['rank 0: the process has ended', 'output of the processes']),
        ('sleep_on_rank_0', (), 3, ['no answer from ranks [0]', 'in sleep_on_rank_0']),
        ('missing', (), 60, ['rank 0: Traceback', 'rank 1: Traceback', "no attribute 'missing'"]),
    ],
)
def test_a_failure_names_its_ranks_and_the_next_case_has_a_new_world(
    world, case, arguments, seconds, reports
):
    before = world.run('test_worlds:rank_and_process')
    with pytest.raises(WorldError) as error:
        world.run(f'test_worlds:{case}', *arguments, seconds=seconds)
    for report in reports:
        assert report in str(error.value)
    assert ended([process for _, process in before])
    after = world.run('test_worlds:rank_and_process')
    assert [rank for rank, _ in after] == [0, 1]
    assert not {process for _, process in before} & {process for _, process in after}


def test_a_launcher_that_does_not_start_reports_what_it_says(monkeypatch):
    monkeypatch.setitem(LAUNCHERS, 'false', ['sh', '-c', 'echo no; exit 3'])
    with pytest.raises(WorldError, match=r'false did not start 2 ranks; output:\nno'):
        World('false', 2).run('test_worlds:rank_and_process')


def test_only_the_latest_worlds_are_kept(monkeypatch):
    closed = []
    monkeypatch.setattr(World, 'close', lambda self, kill=False: closed.append(self.size))
    worlds = Worlds()
    first = worlds('torchrun', 2)
    assert worlds('torchrun', 3) is not first
    assert worlds('torchrun', 2) is first
    worlds('torchrun', 4)
    assert closed == [3]
    worlds.close()
    assert sorted(closed) == [2, 3, 4]
