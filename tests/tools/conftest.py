"""Tests that need an emulated cluster skip where there can be none, and say why."""

from __future__ import annotations

import importlib.util
import shutil
from functools import cache

import pytest

from tools.cluster import Cluster, ClusterError


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
