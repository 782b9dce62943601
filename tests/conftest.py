"""What holds for all tests: no deadlines, and what cannot run here skips and says why."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import sys
from functools import cache

import pytest
import warm
from grouping import (  # hooks  # noqa: F401
    pytest_collection_modifyitems,
    pytest_configure_node,
    pytest_xdist_make_scheduler,
)
from hypothesis import settings
from worlds import Worlds, has_mpi

from tools.cluster import Cluster, ClusterError

# The tests need no name but this machine's, yet each store of torch's looks names up, in whatever
# process. A name server that does not answer would hold up a process for five seconds each time.
os.environ.setdefault('RES_OPTIONS', 'timeout:1 attempts:1')

# Each of the hundreds of processes that the tests start would compile the project anew, and each
# process of xdist all tests.
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
sys.dont_write_bytecode = False

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile('no deadline', deadline=None)
settings.load_profile('no deadline')


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Without looking for garbage, a quarter of the time: ten thousand tests stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@cache
def why_no_cluster() -> str:
    try:
        with Cluster(1, '100mbit'):
            return ''
    except ClusterError as error:
        return str(error)


def pytest_runtest_setup(item):
    needs = {mark.name for mark in item.iter_markers()}
    if 'namespaces' in needs and why_no_cluster():
        pytest.skip(why_no_cluster())
    if 'horovod' in needs and importlib.util.find_spec('horovod') is None:
        pytest.skip('Horovod is not installed: make horovod')
    if 'mpi' in needs and shutil.which('mpirun') is None:
        pytest.skip('mpirun is not installed')
    if {'mpi', 'horovod'} <= needs and not has_mpi():
        pytest.skip('Horovod was built without MPI: make horovod, with mpicxx on the path')


STARTED = Worlds()


@pytest.fixture(scope='session')
def worlds() -> Worlds:
    """Real processes by launcher and number, started once for all tests that ask them."""
    return STARTED


def pytest_runtest_teardown(item, nextitem):
    """End the worlds where the next test needs none: idle ranks of Horovod take a whole core."""
    if nextitem is None or 'worlds' not in nextitem.fixturenames:
        STARTED.close(kill=True)


@pytest.fixture
def warm_python(monkeypatch) -> None:
    """Processes that this one starts by ``sys.executable`` import torch once for all tests."""
    for name, value in warm.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, 'executable', str(warm.STUB))


def pytest_make_parametrize_id(val: object) -> str | None:
    """An id without an address, where pytest would print one: processes must collect the same."""
    return stable_name(val) if ' at 0x' in repr(val) else None


def stable_name(value: object) -> str:
    """The name of a function or of a type; of a dictionary, those of its values."""
    if isinstance(value, dict):
        return ' '.join(f'{key}={stable_name(item)}' for key, item in value.items())
    return getattr(value, '__name__', type(value).__name__)
