"""What a new user brings: data and models of other kinds, a package of their own, sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import ROOT, here, only_run

from utils.config.replaced import REPLACED

DIGITS = ['--configs', 'configs/digits/cnn.py', '--devices', 'cpu']
SHORT = ['--configs.train.batch_size', '256', '--configs.train.num_epochs']

TASK = """
import torch
from torch.utils.data import TensorDataset
from utils.config import Config, configs


def data():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 4, generator=draw)
    pairs = TensorDataset(inputs, {targets})
    return {{'train': pairs, 'test': pairs}}


def net():
    return torch.nn.Linear(4, {outputs})


configs.model, configs.dataset = Config(net), Config(data)
configs.train.num_epochs, configs.train.batch_size, configs.train.optimizer.lr = 1, 8, 0.01
configs.train.criterion = Config(torch.nn.{criterion})
"""


def task(folder: Path, targets: str, outputs: int, criterion: str) -> list[str]:
    """The command line of a config file of one's own."""
    file = folder / 'task.py'
    file.write_text(TASK.format(targets=targets, outputs=outputs, criterion=criterion))
    return ['--configs', str(file), '--devices', 'cpu', '--runs', str(folder / 'runs')]


@pytest.fixture
def regression(tmp_path) -> list[str]:
    return task(tmp_path, 'inputs.sum(1, keepdim=True)', 1, 'MSELoss')


def test_accuracy_of_a_regression_is_refused_before_training(regression, tmp_path):
    """failures row 5: it was 0 % and chose the best checkpoint."""
    done = here(*regression)
    (line,) = done.complaints
    assert done.code == 2 and not (tmp_path / 'runs').exists()
    assert line.startswith('train.py: configs.train.meters.acc/{}_top1: top-1 accuracy compares')
    assert line.endswith("'--configs.train.meters.acc/{}_top1' None --configs.train.metric None")


def test_a_regression_trains_without_meters_and_keeps_its_last_epoch(regression, tmp_path):
    """failures rows 5 and 23: the published metric None."""
    none = [f'--configs.train.{name}=None' for name in ('metric', 'meters.acc/{}_top1',
                                                        'meters.acc/{}_top5')]  # fmt: skip
    run = only_run(tmp_path / 'runs', here(*regression, *none, '--configs.train.num_epochs=2'))
    assert [set(line) >= {'loss/train'} for line in run.metrics] == [True, True]
    assert (run.folder / 'checkpoints/best.txt').read_text() == '1\n'


def test_the_meter_of_the_documents_measures_a_regression(regression, tmp_path):
    """failures row 5"""
    page = (ROOT / 'docs/adding.md').read_text()
    meter = tmp_path / 'error.py'
    meter.write_text(page[page.index('# mine/error.py') :].partition('```')[0])
    regression.insert(2, str(meter))
    run = only_run(tmp_path / 'runs', here(*regression, '--configs.train.num_epochs=3'))
    errors = [line['error/test'] for line in run.metrics]
    assert min(errors) > 0
    best = (run.folder / 'checkpoints/best.txt').read_text()
    assert int(best) == errors.index(min(errors))


def test_five_of_three_classes_are_refused_and_two_are_not(tmp_path):
    """failures row 5: top-5 of three classes was 100 %."""
    words = task(tmp_path, 'torch.arange(64) % 3', 3, 'CrossEntropyLoss')
    done = here(*words)
    assert done.code == 2
    assert 'acc/{}_top5: top-5 accuracy is always 100 % of 3 classes: set k' in done.complaints[0]
    run = only_run(tmp_path / 'runs', here(*words, '--configs.train.meters.acc/{}_top5.k', '2'))
    assert 0 < run.metrics[0]['acc/test_top5'] < 100


def test_a_sweep_moves_none_of_its_runs_aside(tmp_path):
    """failures row 20"""
    for rate in ('0.01', '0.02', '2e-2'):
        more = ['--configs.train.optimizer.lr', rate, '--runs', tmp_path]
        assert here(*DIGITS, *SHORT, '1', *more).code == 0
    swept = 'digits.cnn@batch_size=256,num_epochs=1,optimizer.lr={}.np1'
    names = [swept.format('0.01'), swept.format('0.02'), swept.format('0.02') + '~1']
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    # Two runs of these files could be meant: none is chosen.
    done = here(*DIGITS, '--runs', tmp_path, '--resume')
    assert done.code == 2
    assert 'several runs of these config files have checkpoints; name one' in done.complaints[0]
    # A run that is named goes on in its folder, with the settings of now.
    words = [*DIGITS, *SHORT, '2', '--runs', tmp_path, '--resume', tmp_path / names[0]]
    assert here(*words).code == 0
    assert len((tmp_path / names[0] / 'metrics.jsonl').read_text().splitlines()) == 2


def test_a_name_of_ones_own(tmp_path):
    """failures row 20"""
    words = [*DIGITS, '--runs', tmp_path, '--name', 'first try']
    assert here(*words, *SHORT, '1').code == 0
    assert here(*words, *SHORT, '2', '--resume').code == 0
    assert [path.name for path in tmp_path.iterdir()] == ['first try']
    for more, message in {
        ('--suffix', '.x'): '--name is the whole name',
        ('--name', '..'): 'is not the name of a folder',
        ('--name', 'a/b'): 'without /',
        ('--name', 'x' * 250): 'has more than 240 bytes',
    }.items():
        done = here(*words, *more)
        assert done.code == 2 and message in done.complaints[0]


def test_many_long_files_make_a_folder(tmp_path):
    """failures row 20: a name of more than 255 bytes was refused by the file system."""
    folder = tmp_path / ('deep' * 20) / ('deeper' * 20)
    folder.mkdir(parents=True)
    files = [folder / f'number [{number}].py' for number in range(10)]
    for file in files:
        file.write_text('')
    words = ['--configs', 'configs/digits/cnn.py', *files, '--devices', 'cpu', '--runs']
    run = only_run(tmp_path / 'runs', here(*words, tmp_path / 'runs', *SHORT, '1'))
    assert not set('[]()*?! ') & set(run.folder.name)


@pytest.mark.parametrize('path', [path for path in REPLACED if 'compress_ratio' not in path])
def test_what_replaces_a_published_setting_is_said_and_documented(path, tmp_path):
    """failures row 23"""
    words = ['--configs', 'configs/digits/cnn.py', 'configs/dgc/wm5.py', '--runs', tmp_path]
    done = here(*words, f'--{path}', '1')
    (line,) = done.complaints
    assert done.code == 2 and line.endswith(f': {REPLACED[path]}')
    assert f'| `{path.removeprefix("configs.")}`' in (ROOT / 'docs/dgc.md').read_text()


def test_published_settings_that_are_kept(tmp_path):
    """failures row 23: deterministic, warmup_epochs -1, dampening 0."""
    import torch

    words = ['--configs', 'configs/digits/cnn.py', 'configs/dgc/wm0.py', '--devices', 'cpu']
    words += ['--configs.deterministic=True', '--configs.train.compression.warmup_epochs=-1']
    before = torch.backends.cudnn.deterministic
    try:
        done = here(
            *words, '--configs.train.optimizer.dampening=0', *SHORT, '1', '--runs', tmp_path
        )
        assert done.code == 0 and torch.backends.cudnn.deterministic
    finally:
        torch.backends.cudnn.deterministic = before
