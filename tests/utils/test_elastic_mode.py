"""The share of the data, and the learning rate, of workers whose number changes."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from event_files import events
from hypothesis import given
from hypothesis import strategies as st

from dgc.engines import LocalEngine
from dgc.engines.base import EngineError
from dgc.engines.lighthouse import ElasticSettings
from dgc.progress import Progress
from utils.build import build_model
from utils.checks import check_elastic, check_synchronous
from utils.cli import DECLARATIONS, OPTIONS
from utils.config import Config, ConfigError, load
from utils.data import build_datasets
from utils.loading import IN_PLACE
from utils.log import Metrics, RunLog
from utils.progress import EpochMeters
from utils.training.elastic import (
    Elastic,
    ElasticLoader,
    ElasticParts,
    EpochProgress,
    Events,
    Share,
    check_samples,
    set_scaled_rate,
)

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


class Course:
    """Stands for the optimizer and the saver of a worker whose group changes, and may lose steps.

    Args:
        share: Of the worker.
        sizes: Of the group, by the number of calls of ``begin``.
        lost: Which of these steps are not applied.
    """

    def __init__(self, share: Share, sizes: list[int], lost: set[int]) -> None:
        self._share, self._sizes, self._lost = share, sizes, lost
        self.steps, self.changes, self.engine = 0, [], SimpleNamespace(members=())
        self.progress = Progress()

    def begin(self) -> None:
        size = self._sizes[min(self.steps, len(self._sizes) - 1)]
        if size != self._share.size or not self.changes:
            self.changes.append(size)
            self._share.size = size
        self.committed = self.steps not in self._lost

    def average(self, _: list[torch.Tensor]) -> bool:
        return True

    def between_steps(self, _: bool) -> None:
        self.steps += 1


def run_of(folder: Path, sizes: list[int], lost: set[int], axis: str = 'samples') -> None:
    """Two epochs of 1,000 samples in batches of 8, as train.py makes them, and their files."""
    share = Share(1000, 8, 7, for_processes=False)
    progress = EpochProgress(torch.nn.Linear(1, 1), share)
    dataset = torch.utils.data.TensorDataset(torch.zeros(1000))
    loader = ElasticLoader(dataset, share, progress, Events(), IN_PLACE)
    loader.optimizer = loader.saver = course = Course(share, sizes, lost)
    parts = ElasticParts(
        engine=LocalEngine(),
        device=torch.device('cpu'),
        model=torch.nn.Linear(1, 1),
        loaders={'train': loader},
        criterion=None,
        optimizer=course,
        rate=None,
        share=share,
    )
    log = RunLog(folder, parts, axis=axis, counting=progress)
    settings = SimpleNamespace(histogram_steps=None, selection_steps=None, trace_steps=None)
    for epoch in (0, 1):
        meters = EpochMeters(parts, log, epoch, settings)
        for _ in loader:
            meters.add(torch.tensor(float(parts.samples_per_step)))
        numbers = meters.measured()
        log.epoch(epoch, {**numbers, 'made': numbers['speed/samples'] * numbers['seconds/train']})
    log.close()


def curve(folder: Path, name: str) -> dict[int, float]:
    (file,) = folder.glob('events.*')
    return {e.step: v.simple_value for e in events(file) for v in e.summary.value if v.tag == name}


@pytest.mark.parametrize('sizes', [[1], [4], [4] * 20 + [2] * 30 + [3], [1] * 70 + [4]])
def test_samples_are_those_of_all_workers_whatever_their_number(sizes, tmp_path):
    """Of steps, which the loss curve has 50 at a time, and of epochs."""
    run_of(tmp_path, sizes, lost=set())
    lines = Metrics(tmp_path / 'metrics.jsonl').read()
    assert [line['samples'] for line in lines] == [1000, 2000]
    assert list(curve(tmp_path, 'speed/samples')) == [1000, 2000]
    points = curve(tmp_path, 'loss/train')  # each loss is the number of samples of its step
    last = 0
    for place, samples in points.items():
        assert place - samples in (last, 1000)
        last = place
    assert set(points.values()) == {8.0 * size for size in sizes}
    assert [line['made'] for line in lines] == pytest.approx(
        [
            sum(n for place, n in points.items() if (place > 1000) is later)
            for later in (False, True)
        ]
    )


def test_a_step_that_is_repeated_has_the_place_of_the_first_try(tmp_path):
    run_of(tmp_path / 'lost', [4], lost={3, 40})
    run_of(tmp_path / 'none', [4], lost=set())
    assert curve(tmp_path / 'lost', 'loss/train') == curve(tmp_path / 'none', 'loss/train')


def test_curves_against_steps_count_the_steps_of_this_worker(tmp_path):
    run_of(tmp_path, [4], lost=set(), axis='steps')
    assert list(curve(tmp_path, 'loss/train')) == list(range(1, 2 * 31 + 1))
    assert list(curve(tmp_path, 'ratio')) == [31, 62]


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
        ('drop_seconds', math.inf),
        ('heal_seconds', math.inf),
        ('start_seconds', math.nan),
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


@pytest.mark.parametrize(
    'words, said',
    [
        ([], 'use windows of a text, and a model that begins each sample anew'),
        (['--configs.dataset.reading', 'windows'], 'configs.model carries its state'),
        (['--configs.dataset.reading', 'windows', '--configs.model.carries', 'False'], None),
    ],
)
def test_state_that_would_go_on_to_other_samples_is_refused(tmp_path, words, said):
    """An LSTM on windows was trained with the states of other samples."""
    (tmp_path / 'text').write_bytes(bytes(range(256)) * 8)
    few = ['--configs.dataset.path', f'{tmp_path}/text', '--configs.model.width', '4']
    files = [ROOT / 'configs' / name for name in ('text/lstm.py', 'elastic/torchft.py')]
    configs = load(files, [*few, *words], OPTIONS, DECLARATIONS)
    model, datasets = build_model(configs, torch.device('cpu')), build_datasets(configs)
    if said is None:
        check_samples(model, datasets)
    else:
        with pytest.raises(ConfigError, match=said):
            check_samples(model, datasets)
