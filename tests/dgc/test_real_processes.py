"""The table of compositions on real processes: they train as the simulated engine does."""

from __future__ import annotations

import importlib.util
import shutil
from functools import cache

import pytest
import torch
from process_helpers import LAUNCHERS, start
from real_worker import collectives, work
from test_properties import TABLE, fits

import dgc

# SparDL's PRES and LRES are in the table.
pytestmark = pytest.mark.filterwarnings('ignore:.*loses part of what it cuts')
HOROVOD = importlib.util.find_spec('horovod') is not None
MARKS = {
    'horovodrun': [pytest.mark.horovod, pytest.mark.skipif(not HOROVOD, reason='no Horovod')],
    'mpirun': [
        pytest.mark.mpi,
        pytest.mark.skipif(not HOROVOD or not shutil.which('mpirun'), reason='no MPI'),
    ],
    'torchrun': [],
}
WORLDS = [
    pytest.param((name, size), marks=MARKS[name], id=f'{name} {size}')
    for name in LAUNCHERS
    for size in (2, 3, 4)
]


@pytest.fixture(scope='module', params=WORLDS)
def world(request, tmp_path_factory) -> list[dict]:
    """Each rank's results, under one launcher."""
    name, size = request.param
    folder = tmp_path_factory.mktemp(name)
    start(name, size, 'real_worker.py', str(folder))
    return [torch.load(folder / f'{rank}.pth', weights_only=True) for rank in range(size)]


@cache
def simulated(size: int) -> list[dict]:
    """The same on the simulated engine."""
    return dgc.simulate(size, work)


def test_ranks_are_those_of_the_launcher(world):
    places = [rank['world'] for rank in world]
    assert places == [
        {'rank': rank, 'size': len(world), 'local_size': len(world)} for rank in range(len(world))
    ]


@pytest.fixture(params=TABLE)
def row(request, world) -> str:
    """Every row whose exchange serves so many ranks."""
    if not fits(request.param, len(world)):
        pytest.skip(f'does not serve {len(world)} ranks')
    return request.param


def test_ranks_agree_bit_for_bit(world, row):
    first, *others = (rank['compositions'][row] for rank in world)
    for other in others:
        assert all(map(torch.equal, other, first))


def test_real_processes_train_as_simulated_ones(world, row):
    expected = simulated(len(world))[0]['compositions'][row]
    for ours, theirs in zip(world[0]['compositions'][row], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_collectives_give_the_same_on_every_engine(world):
    expected = dgc.simulate(len(world), collectives)
    for rank, theirs in zip(world, expected, strict=True):
        for name, result in rank['collectives'].items():
            assert torch.equal(result, theirs[name]), name
