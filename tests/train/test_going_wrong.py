"""Runs whose numbers go wrong: rollbacks, weights that explode, ranks that no longer agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import DIGITS, SIMULATED, Run, assert_same, here

from utils import sealed

# Does something in some of the steps that an instance makes, which a file beside it numbers.
MODEL = """
from pathlib import Path

import torch

from models.digits import DigitsCNN
from utils.config import Config, configs

STEPS = Path(__file__).with_name('steps')


class Wrong(DigitsCNN):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.spare = torch.nn.Parameter(torch.ones(10))  # which no loss depends on

    def forward(self, x):
        self.made += self.training
        steps = [*map(int, STEPS.read_text().split())] if STEPS.is_file() else []
        if self.training and self.made in steps:
            ACTION
        return super().forward(x)


configs.model = Config(Wrong)
"""
NAN = "x = x * float('nan')"
SKIP = ['--configs.train.compression.nonfinite=skip', '--configs.rollback.after_skips=2']
EACH = '--configs.checkpoint.every_steps=2'


class Job:
    """Two simulated workers, two epochs of 5 steps, without a warm-up of the learning rate."""

    def __init__(self, folder: Path, action: str, *more: str) -> None:
        self.folder, self.file = folder, folder / 'wrong.py'
        self.file.write_text(MODEL.replace('ACTION', action))
        self.words = ['--configs', 'configs/digits/cnn.py', str(self.file), *DIGITS[2:]]
        self.words += ['--configs.train.num_epochs=2', '--configs.train.batch_size=128']
        self.words += ['--configs.train.warmup_lr_epochs=0', *more, *SIMULATED, '2']

    def run(self, name: str, steps: str, *more: str | Path, code: int = 0) -> Run:
        """Run it under ``folder/name``, with the action in ``steps``."""
        self.file.with_name('steps').write_text(steps)
        done = here(*self.words, '--runs', self.folder / name, *more)
        assert done.code == code, done.output
        folders = sorted(self.folder.glob(f'{name}/*'))
        return Run(folders[0] if folders else self.folder, done)


def test_skipped_steps_lead_back_to_the_checkpoint_before_them(tmp_path):
    """At half the rate, which a kill later on does not change; with the files of one course."""
    job = Job(tmp_path, NAN, *SKIP, EACH)
    rolled = job.run('rolled', '8 9')
    (line,) = [line for line in rolled.done.lines if 'going back' in line]
    assert line == (
        'skipped steps, 2 in a row, until 4 steps of epoch 1: going back to e0001.s000001, '
        'with the learning rate times 0.5'
    )
    straight = job.run('straight', '')
    assert rolled.metrics[1]['lr'] == straight.metrics[1]['lr'] / 2
    assert [line['epoch'] for line in rolled.metrics] == [0, 1]
    assert list(rolled.curve('loss/train')) == list(straight.curve('loss/train'))
    # The same as a run that goes on from there with that rate.
    folder = tmp_path / 'again' / straight.folder.name / 'checkpoints'
    killed = job.run('killed', '8', '--configs.rollback.after_skips=1')
    folder.mkdir(parents=True)
    for path in (killed.folder / 'checkpoints').glob('e0001.s000003.*'):
        state = sealed.read(path)
        assert state['rate_factor'] == 0.5
        (folder / path.name).write_bytes(path.read_bytes())
    again = job.run('again', '', '--resume', 'auto')
    for rank in range(2):
        assert_same(again.checkpoint(1, rank)['model'], rolled.checkpoint(1, rank)['model'])
        assert again.checkpoint(1, rank)['rate_factor'] == 0.5


def test_a_run_goes_back_so_often_and_then_ends(tmp_path):
    job = Job(tmp_path, NAN, *SKIP, EACH, '--configs.rollback.times=2')
    run = job.run('runs', '3 4', code=3)
    factors = [line.rpartition(' ')[2] for line in run.done.lines if 'going back' in line]
    assert factors == ['0.5', '0.25']
    (line,) = run.done.complaints
    assert line.startswith('train.py: skipped steps, 2 in a row, until ')
    assert ', after 2 rollbacks (configs.rollback.times): lower the learning rate' in line


def test_a_run_that_was_resumed_goes_back_to_where_it_began(tmp_path):
    job = Job(tmp_path, NAN, *SKIP)
    job.run('runs', '', '--configs.train.num_epochs=1', '--name', 'run')
    run = job.run('runs', '1 2', '--resume', 'auto', '--name', 'run', code=3)
    assert sum('going back to e0000, ' in line for line in run.done.lines) == 3
    assert ', after 3 rollbacks (configs.rollback.times)' in run.done.complaints[0]


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(tmp_path):
    (line,) = Job(tmp_path, NAN, *SKIP).run('runs', '1 2', code=3).done.complaints
    assert '2 in a row, until 2 steps of epoch 0, and there is nothing to go back to' in line


def test_weights_that_explode_are_saved_and_never_gone_on_from(tmp_path):
    """The good checkpoints before them stay."""
    explode = 'self.spare.data.mul_(1e6)'
    job = Job(tmp_path, explode, '--configs.checkpoint.every_steps=1')
    run = job.run('runs', '7')
    positions = {name[: -len('.r0of2.pth')] for name in run.checkpoints if 'r0of2' in name}
    assert positions == {'e0000', 'e0000.s000004', 'e0001.s000001', 'e0001'}
    assert any('e0001.s000002 is never gone on from' in line for line in run.done.lines)
    again = job.run('runs', '', '--resume')
    (line,) = [line for line in again.done.lines if 'going on from e0001.s000001' in line]
    assert 'e0001.r0of2.pth holds weights whose norm is ' in line
    straight = job.run('straight', '')
    for rank in range(2):
        assert_same(again.checkpoint(1, rank), straight.checkpoint(1, rank))


@pytest.mark.parametrize(
    ('action', 'name'),
    [
        ('self.classifier.bias.data[0] += 1', 'classifier.bias'),
        ('self.bn1.num_batches_tracked += 1', 'bn1.num_batches_tracked'),
    ],
)
def test_the_first_tensor_in_which_ranks_differ_is_named(tmp_path, action, name):
    one = f'STEPS.unlink(), {action.replace("+= 1", ".add_(1)")}'
    job = Job(tmp_path, one, '--configs.agreement=2')
    (line,) = job.run('runs', '3', code=3).done.complaints
    where = f'hold different values of {name} after 4 steps of epoch 0'
    assert line == f'train.py: rank 1 and rank 0 {where}'


@pytest.mark.parametrize('stack', [DIGITS[2:5], ['configs/diloco/diloco.py']], ids=['dgc', 'local'])
def test_ranks_that_agree_train_on(tmp_path, stack):
    """Although the statistics of BatchNorm differ, and between outer steps also parameters."""
    job = Job(tmp_path, 'pass', '--configs.agreement=1')
    job.words[3:6] = stack
    if len(stack) == 1:
        job.words.append('--configs.train.averaging.every=4')
    assert len(job.run('runs', '').metrics) == 2


@pytest.mark.parametrize(
    ('words', 'reason'),
    [
        ([SKIP[1]], 'add --configs.train.compression.nonfinite skip'),
        (['--configs.rollback.after_skips=0'], 'after_skips must be at least 1, got 0'),
        (['--configs.rollback.lr_factor=0'], 'expected a number above 0, and at most 1'),
        (['--configs.rollback.times=0'], 'times must be at least 1, got 0'),
        (['--configs.agreement=0.5'], 'configs.agreement = 0.5: expected int'),
        (['--configs.checkpoint.most_growth=0.5'], 'most_growth must be at least 1, got 0.5'),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path, words, reason):
    done = here(*DIGITS, '--runs', tmp_path, *words)
    (line,) = done.complaints
    assert done.code == 2 and reason in line
