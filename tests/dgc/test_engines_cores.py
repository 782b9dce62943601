"""Cores that affinity and the quota of a container leave: failures row 17."""

from __future__ import annotations

import os

import pytest
import torch

from dgc.engines import cores
from utils import build


def group(folder, files):
    """Write the files of a control group."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f'{text}\n')


def quota(tmp_path, own):
    (tmp_path / 'own').write_text(own)
    return cores.quota(tmp_path / 'fs', tmp_path / 'own')


@pytest.mark.parametrize(
    ('limit', 'expected'),
    [
        ('150000 100000', 1.5),
        ('max 100000', float('inf')),
        ('400000 100000', 4.0),
        ('garbage', float('inf')),
        ('0 100000', float('inf')),
    ],
)
def test_version_2_has_one_file(tmp_path, limit, expected):
    """failures row 17: docker --cpus 1.5."""
    group(tmp_path / 'fs', {'cpu.max': limit})
    assert quota(tmp_path, '0::/\n') == expected


def test_the_least_quota_of_the_groups_above_counts(tmp_path):
    """failures row 17: a Slurm step below a pod, say."""
    group(tmp_path / 'fs/pod', {'cpu.max': '200000 100000'})
    group(tmp_path / 'fs/pod/step', {'cpu.max': '800000 100000'})
    assert quota(tmp_path, '0::/pod/step\n') == 2.0


@pytest.mark.parametrize('mount', ['cpu,cpuacct', 'cpu'])
@pytest.mark.parametrize('path', ['/', '/docker/the-hosts-name-of-this-container', '/../x'])
def test_version_1_has_two_files(tmp_path, mount, path):
    """failures row 17. In a container only the folder of its own group may be there."""
    files = {'cpu.cfs_quota_us': '250000', 'cpu.cfs_period_us': '100000'}
    group(tmp_path / 'fs' / mount, files)
    assert quota(tmp_path, f'5:memory:/\n4:cpu,cpuacct:{path}\n0::/\n') == 2.5


def test_version_1_without_a_limit_says_minus_one(tmp_path):
    group(tmp_path / 'fs/cpu', {'cpu.cfs_quota_us': '-1', 'cpu.cfs_period_us': '100000'})
    assert quota(tmp_path, '1:cpu:/\n') == float('inf')


@pytest.mark.parametrize('own', [None, '', 'damaged', '0::/\n'])
def test_without_control_groups_there_is_no_limit(tmp_path, own):
    if own is None:
        assert cores.quota(tmp_path, tmp_path / 'nothing') == float('inf')
    else:
        assert quota(tmp_path, own) == float('inf')


def test_here_there_is_at_most_what_affinity_leaves():
    assert 0 < cores.available_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ('available', 'workers', 'expected'), [(8.0, 2, 4), (3.5, 2, 1), (1.5, 1, 1), (0.5, 4, 1)]
)
def test_workers_share_them(monkeypatch, available, workers, expected):
    """failures row 17: a quota was ignored when threads were divided."""
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    monkeypatch.setattr(build, 'available_cores', lambda: available)
    assert build.threads(None, workers) == expected


def test_what_is_set_is_taken(monkeypatch):
    monkeypatch.setattr(build, 'available_cores', lambda: 8.0)
    assert build.threads(3, 2) == 3
    monkeypatch.setenv('OMP_NUM_THREADS', '5')
    assert build.threads(None, 2) == torch.get_num_threads()
