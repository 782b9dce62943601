"""What holds for all tests: no deadlines, and what cannot run here skips and says why."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import settings
from worlds import Worlds

from tools.cluster import Cluster, ClusterError

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile('no deadline', deadline=None)
settings.load_profile('no deadline')

STARTING = ('train', 'bench', 'tools')  # folders of tests that start processes


@cache
def why_no_cluster() -> str:
    try:
        with Cluster(1, '100mbit'):
            return ''
    except ClusterError as error:
        return str(error)


def group_of(item: pytest.Item) -> str:
    """The name of the tests that run one after another in one process, with this one among them.

    They share a world of processes, a training run or the machine's network namespaces; other tests
    share what their file makes for the whole module.
    """
    if mark := item.get_closest_marker('xdist_group'):
        return mark.args[0]
    if item.get_closest_marker('namespaces'):
        return 'namespaces'
    return 'trained' if 'trained' in getattr(item, 'fixturenames', ()) else item.path.name


def starts_processes(item: pytest.Item) -> bool:
    """Whether a test is likely to take seconds."""
    return item.path.parent.name in STARTING or bool(item.get_closest_marker('xdist_group'))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the tests of a group together, and the groups that start processes to the front.

    Two workers take groups from the front, so a long one at the end would leave one of them idle.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item)
    order = sorted(groups.values(), key=lambda members: not any(map(starts_processes, members)))
    for name, members in groups.items():
        for item in members:
            item.add_marker(pytest.mark.xdist_group(name))
    items[:] = [item for members in order for item in members]


def pytest_runtest_setup(item):
    needs = {mark.name for mark in item.iter_markers()}
    if 'namespaces' in needs and why_no_cluster():
        pytest.skip(why_no_cluster())
    if 'horovod' in needs and importlib.util.find_spec('horovod') is None:
        pytest.skip('Horovod is not installed: make horovod')
    if 'mpi' in needs and shutil.which('mpirun') is None:
        pytest.skip('mpirun is not installed')


@pytest.fixture(scope='session')
def worlds() -> Iterator[Worlds]:
    """Real processes by launcher and number, started once for all tests that ask them."""
    started = Worlds()
    yield started
    started.close()
