"""The table of compositions on real processes: they train as the simulated engine does.

Each row meets one of the launchers, in turns; each exchange, codec, compressor, memory and planner
meets all of them. Each launcher has one number of ranks. A fault that needs another number under
that launcher alone, or two parts together under one launcher alone, would be missed: with
EVERY_WORLD in the environment (``make worlds``) every row meets 2 and 4 ranks of every launcher.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import pytest
import torch
from local_methods import METHODS, trained
from real_worker import collectives, composition
from test_properties import TABLE, fits
from worlds import World, has_mpi

import dgc

# SparDL's PRES and LRES are in the table.
pytestmark = pytest.mark.filterwarnings('ignore:.*loses part of what it cuts')

MARKS = {'horovodrun': ['horovod'], 'mpirun': ['horovod', 'mpi'], 'torchrun': []}
HERE = [
    launcher
    for launcher in MARKS
    if launcher == 'torchrun' or importlib.util.find_spec('horovod')
    if launcher != 'mpirun' or has_mpi()
]
# Worlds take long to start. Where a launcher is missing, torchrun has its numbers of ranks too.
WORLDS = [('torchrun', 2), ('torchrun', 4)]
WORLDS += [('horovodrun' if 'horovodrun' in HERE else 'torchrun', 3)]
WORLDS += [('mpirun', 4)] if 'mpirun' in HERE else []
EXTRA = ('torchrun', 4) if 'mpirun' in HERE else None  # else in mpirun's place
EVERY_WORLD = bool(os.environ.get('EVERY_WORLD'))
if EVERY_WORLD:
    WORLDS, EXTRA = [(launcher, size) for launcher in HERE for size in (2, 4)], None


@cache
def parts(row: str) -> frozenset[object]:
    """The kinds of parts that a row is composed of."""
    made = TABLE[row].make()
    codec = made.codec
    kinds = {type(part) for part in vars(made).values()}
    return frozenset({*kinds, ('values', codec.values), ('indices', codec.indices)})


def rows_of(world: tuple[str, int]) -> list[str]:
    """The rows that are trained in a world: those whose turn it is, and the first row with each
    kind of part that these do not have."""
    rows = [row for row in TABLE if fits(row, world[1])]
    if EVERY_WORLD:
        return rows
    if world == EXTRA:
        # Several buckets of two all-reduces each: PyTorch's PowerSGD hook hangs there on gloo.
        return ['power-sgd small buckets']
    chosen = [row for row in rows if turn_of(row) == world]
    for row in rows:
        if parts(row) - set().union(*map(parts, chosen)):
            chosen.append(row)
    return chosen


def turn_of(row: str) -> tuple[str, int]:
    """The world of a row, of those with a number of ranks that it can serve."""
    able = [world for world in WORLDS if world != EXTRA and fits(row, world[1])]
    return able[list(TABLE).index(row) % len(able)]


CASES = [(*world, row) for world in WORLDS for row in rows_of(world)]


def marked(launcher: str, *others: object) -> object:
    """Values of parameters with what the launcher needs, and one xdist worker for each world."""
    group = pytest.mark.xdist_group(' '.join(map(str, (launcher, others[0]))))
    marks = [group, *(getattr(pytest.mark, name) for name in MARKS[launcher])]
    return pytest.param(launcher, *others, marks=marks)


every_world = pytest.mark.parametrize(('launcher', 'size'), [marked(*world) for world in WORLDS])


@pytest.fixture
def world(worlds, launcher, size) -> World:
    return worlds(launcher, size)


@cache
def simulated(size: int, row: str) -> list:
    """The parameters of rank 0 on the simulated engine."""
    return dgc.simulate(size, lambda engine: composition(engine, row))[0]


@every_world
def test_ranks_are_those_of_the_launcher(world, size):
    assert world.run('real_worker:place') == [
        {'rank': rank, 'size': size, 'local_size': size} for rank in range(size)
    ]


@every_world
def test_collectives_give_the_same_on_every_engine(world, size):
    expected = dgc.simulate(size, collectives)
    for ours, theirs in zip(world.run('real_worker:collectives'), expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, result in ours.items():
            assert torch.equal(result, theirs[name]), name


@pytest.mark.parametrize(('launcher', 'size', 'row'), [marked(*case) for case in CASES])
def test_ranks_agree_bit_for_bit_and_train_as_simulated_ones(world, size, row):
    first, *others = world.run('real_worker:composition', row)
    for other in others:
        assert all(map(torch.equal, other, first))
    for ours, theirs in zip(first, simulated(size, row), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


LOCAL = [(*world, name) for world in (WORLDS if EVERY_WORLD else WORLDS[:1]) for name in METHODS]


@pytest.mark.parametrize(('launcher', 'size', 'name'), [marked(*case) for case in LOCAL])
def test_local_steps_agree_bit_for_bit_and_train_as_simulated_ones(world, size, name):
    """Also those whose fragments travel on the engine's thread, which simulated ranks lack."""
    results = world.run('real_worker:local_steps', name)
    expected = dgc.simulate(size, lambda engine: trained(engine, name))
    for (theta, ours), (simulated_theta, theirs) in zip(results, expected, strict=True):
        assert all(map(torch.equal, theta, results[0][0]))
        torch.testing.assert_close(theta, simulated_theta, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
