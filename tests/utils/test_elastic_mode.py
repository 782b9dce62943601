"""The share of the data, and the learning rate, of workers whose number changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dgc.engines.base import EngineError
from dgc.engines.lighthouse import ElasticSettings
from utils.checks import check_elastic, check_synchronous
from utils.cli import DECLARATIONS, OPTIONS
from utils.config import Config, ConfigError, load
from utils.training.elastic import Elastic, Share, set_scaled_rate

ROOT = Path(__file__).parent.parent.parent


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
    train = SimpleNamespace(
        optimizer=SimpleNamespace(lr=0.1), num_batches_per_step=2, scale_lr=True
    )
    set_scaled_rate(SimpleNamespace(train=train), optimizer, 3)
    assert optimizer.param_groups[0]['lr'] == pytest.approx(0.6)
    train.scale_lr = False
    set_scaled_rate(SimpleNamespace(train=train), optimizer, 3)
    assert optimizer.param_groups[0]['lr'] == 0.1
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


def loaded(*words: str) -> Config:
    """The configuration of the digits with these files and settings."""
    files = [word for word in words if word.endswith('.py')]
    settings = [word for word in words if not word.endswith('.py')]
    paths = [ROOT / file for file in ('configs/digits/cnn.py', *files)]
    return load(paths, settings, OPTIONS, DECLARATIONS)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--configs.engine.name', 'torchft'], 'add configs/elastic/torchft.py to --configs'),
        (['--configs.elastic.lighthouse', 'a:1'], r'configs\.elastic\.lighthouse is set, and the'),
        (['configs/elastic/torchft.py', '--configs.engine.name', 'torch'], 'does not fit'),
        (['configs/elastic/torchft.py', 'configs/diloco/diloco.py'], 'averaging = OuterSteps does'),
        (
            ['configs/elastic/torchft.py', '--configs.engine.abort_seconds', '60.0'],
            r'engine\.abort_seconds = 60\.0 has no effect with elastic workers',
        ),
    ],
)
def test_what_elastic_workers_do_not_have_is_named(words, message):
    configs = loaded(*words)
    check = check_elastic if 'configs/elastic/torchft.py' in words else check_synchronous
    with pytest.raises(ConfigError, match=message):
        check(configs)


def test_the_config_file_chooses_the_mode():
    configs = loaded('configs/elastic/torchft.py', '--configs.elastic.start_workers', '4')
    check_elastic(configs)
    assert isinstance(configs.train.distribution.build(), Elastic)
    assert configs.elastic.build() == ElasticSettings(start_workers=4)
