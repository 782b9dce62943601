"""The share of the data, and the learning rate, of workers whose number changes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import utils.training.synchronous  # noqa: F401  # before configs
from dgc.engines.base import EngineError
from dgc.engines.lighthouse import ElasticSettings
from utils.training.elastic import Share, set_scaled_rate


def shares(total: int, batch: int, size: int, position: int, epoch: int) -> list[Share]:
    made = [Share(total, batch, 7, for_processes=False) for _ in range(size)]
    for rank, share in enumerate(made):
        share.rank, share.size, share.position, share.epoch = rank, size, position, epoch
    return made


@given(
    total=st.integers(1, 60),
    batch=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    epoch=st.integers(0, 3),
)
def test_no_sample_is_left_out_or_used_twice_where_the_number_changes(total, batch, sizes, epoch):
    used: list[int] = []
    size = sizes[0]
    for size in sizes:
        workers = shares(total, batch, size, len(used), epoch)
        assert len({share.is_exhausted for share in workers}) == 1
        if workers[0].is_exhausted:
            continue
        step = [next(iter(share)) for share in workers]  # those of the next step only
        assert all(len(indices) == batch for indices in step)
        used += [index for indices in step for index in indices]
    order = torch.randperm(total, generator=torch.Generator().manual_seed(7 + epoch)).tolist()
    assert used == order[: len(used)]


def test_an_epoch_has_as_many_steps_as_it_yields():
    for size in (1, 2, 3):
        share = shares(total=31, batch=4, size=size, position=0, epoch=0)[0]
        assert len(list(share)) == len(share) == 31 // (4 * size)


def test_the_rate_is_that_of_the_workers_there_are():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.param_groups[0]['initial_lr'] = 0.1
    train = SimpleNamespace(optimizer=SimpleNamespace(lr=0.1), num_batches_per_step=2)
    set_scaled_rate(SimpleNamespace(train=train), optimizer, 3)
    assert optimizer.param_groups[0]['lr'] == pytest.approx(0.6)
    assert 'initial_lr' not in optimizer.param_groups[0]


@pytest.mark.parametrize(
    ('setting', 'value'),
    [
        ('start_workers', 0),
        ('start_workers', 1.5),
        ('drop_seconds', 0),
        ('residual_backup', -1),
        ('join_seconds', True),
        ('worker', ''),
    ],
)
def test_settings_that_make_no_sense_are_named(setting, value):
    with pytest.raises(EngineError, match=rf'configs\.elastic\.{setting} '):
        ElasticSettings('127.0.0.1:1', **{setting: value})
