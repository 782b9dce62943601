"""Checkpoints within an epoch: a run that was killed or asked to stop goes on to the same bits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from launching import (
    DIGITS,
    LAUNCHERS,
    PYTHON,
    SIMULATED,
    Done,
    Run,
    assert_same,
    command,
    here,
    only_run,
    start,
)

from utils import sealed
from utils.training.saving import Saver

# Draws from every random generator, has statistics that differ between ranks, and does something
# in a step that a file beside it names.
MODEL = """
import os
import random
import signal
from pathlib import Path

import numpy as np
import torch

from models.digits import DigitsCNN
from utils.config import Config, configs

STEP = Path(__file__).with_name('step')


class Noisy(DigitsCNN):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(1)
        self.step = 0

    def forward(self, x):
        if self.training:
            self.step += 1
            x = self.norm(x) + 0.1 * (random.random() + np.random.random())
            x = torch.nn.functional.dropout(x, 0.1)
            if STEP.is_file() and self.step == int(STEP.read_text()):
                STEP.unlink()
                ACTION
        return super().forward(x)


configs.model = Config(Noisy)
"""
TERMINATE = 'os.kill(os.getpid(), signal.SIGTERM)'
FAIL = "raise RuntimeError('on fire')"
STACKS = {
    'dgc': [],
    'local steps of two batches': [
        'configs/diloco/diloco.py',
        '--configs.train.averaging.every=4',
        '--configs.train.num_batches_per_step=2',
        '--configs.train.batch_size=64',
    ],
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Ranks agree after every step, however short it is."""
    monkeypatch.setattr('utils.training.stopping.BETWEEN', 0.0)


class Job:
    """Two simulated workers, two epochs of 5 steps, with the model above."""

    def __init__(self, folder: Path, action: str, *more: str) -> None:
        folder.mkdir(exist_ok=True)
        self.file = folder / 'noisy.py'
        self.file.write_text(MODEL.replace('ACTION', action))
        configs = [word for word in more if word.endswith('.py')]
        stack = configs or DIGITS[2:-2]
        words = [word for word in more if not word.endswith('.py')]
        self.words = ['--configs', 'configs/digits/cnn.py', str(self.file), *stack, *DIGITS[-2:]]
        self.words += ['--configs.train.num_epochs=2', '--configs.train.batch_size=128', *words]
        self.words += [*SIMULATED, '2']
        self.runs = folder

    def run(self, name: str, *more: str, step: int | None = None, code: int = 0) -> Run:
        """Run it under ``runs/name``; ``step`` is that in which it acts."""
        if step is not None:
            self.file.with_name('step').write_text(str(step))
        runs = self.runs / name
        done = here(*self.words, '--runs', runs, *more)
        assert done.code == code, done.output
        return Run(sorted(runs.iterdir())[0], done)


def check_same(run: Run, straight: Run) -> None:
    """The checkpoints, metrics and curves of a run are those of the undisturbed one."""
    for rank in range(2):
        assert_same(run.checkpoint(1, rank), straight.checkpoint(1, rank))
    assert run.results == straight.results
    for tag in ('loss/train', 'acc/test_top1'):
        assert run.curve(tag) == straight.curve(tag)


@pytest.mark.parametrize('more', STACKS.values(), ids=STACKS)
def test_a_run_that_was_asked_to_stop_goes_on_to_the_same_bits(tmp_path, more):
    job = Job(tmp_path, TERMINATE, *more)
    straight = job.run('straight')
    stopped = job.run('stopped', step=8, code=143)
    (line,) = stopped.done.complaints
    assert line.startswith('train.py: SIGTERM: stopped after ')
    assert [name for name in stopped.checkpoints if '.s0' in name]
    check_same(job.run('stopped', '--resume'), straight)


@pytest.mark.parametrize('step', [3, 9])
def test_a_run_that_failed_goes_on_from_its_last_steps(tmp_path, step):
    """It begins by itself, and goes on by itself, with the same command line."""
    job = Job(tmp_path, FAIL, '--configs.checkpoint.every_steps=2')
    straight = job.run('straight')
    failed = job.run('failed', '--resume', 'auto', step=step, code=1)
    names = [name for name in failed.checkpoints if name.endswith('r1of2.pth')]
    assert names[-1] == ('e0000.s000002.r1of2.pth' if step == 3 else 'e0001.s000003.r1of2.pth')
    again = job.run('failed', '--resume', 'auto')
    check_same(again, straight)
    assert [path.name for path in again.folder.parent.iterdir()] == [again.folder.name]
    assert 'nothing left to train' in job.run('failed', '--resume', 'auto').done.output


def test_a_checkpoint_that_cannot_be_written_does_not_hide_what_stopped_training():
    """Whatever the thread that writes has met."""

    class Failed:
        def wait(self) -> None:
            raise RuntimeError('of the writer')

    saver = SimpleNamespace(_writer=Failed(), checkpoints=SimpleNamespace(saved=set))
    assert not Saver.has_saved(saver)


@pytest.mark.parametrize('kills', ['in the next epoch', 'at the end of the run'])
def test_the_best_epoch_is_known_after_a_kill(tmp_path, kills):
    """Its file is written, best.txt is not yet, and no later epoch is better."""
    if kills == 'in the next epoch':
        job = Job(tmp_path, FAIL)
        run = job.run('killed', step=8, code=1)
    else:
        job = Job(tmp_path, FAIL, '--configs.train.num_epochs=1')
        run = job.run('killed')
    folder = run.folder / 'checkpoints'
    (folder / 'best.txt').unlink(missing_ok=True)
    for path in folder.glob('e0000.*'):
        state = sealed.read(path)
        sealed.write({**state, 'best': 1000.0}, state.pop('manifest'), path)
    if kills == 'in the next epoch':
        job.run('killed', '--resume', 'auto', step=1, code=1)
        assert (folder / 'best.txt').read_text() == '0\n'
        (folder / 'best.txt').unlink()
    job.run('killed', '--resume', 'auto')
    assert (folder / 'best.txt').read_text() == '0\n'


def test_an_epoch_of_which_nothing_is_left_has_no_loss(tmp_path):
    """With larger batches the samples that are left are fewer than a step."""
    job = Job(tmp_path, TERMINATE)
    stopped = job.run('stopped', step=5, code=143)
    larger = '--configs.train.batch_size=256'
    again = job.run('again', '--resume', str(stopped.folder), larger)
    assert [('loss/train' in line, 'acc/test_top1' in line) for line in again.metrics] == [
        (False, True),
        (True, True),
    ]


@pytest.mark.parametrize('resume', [(), ('--resume', 'auto')])
def test_a_model_that_fails_on_one_rank_is_refused_on_all(tmp_path, resume):
    """Before the search for a checkpoint, and before parameters are broadcast."""
    job = Job(tmp_path, FAIL)
    fails = 'super().__init__()\n        if STEP.is_file():\n            STEP.unlink()\n'
    fails += f'            {FAIL}'
    job.file.write_text(job.file.read_text().replace('super().__init__()', fails))
    job.file.with_name('step').touch()
    done = here(*job.words, '--runs', tmp_path / 'runs', *resume)
    assert done.code == 2, done.output
    (line,) = done.complaints
    assert re.fullmatch(r'train.py: rank [01]: RuntimeError: on fire', line)


@pytest.mark.parametrize(('name', 'code'), [('SIGUSR1', 143), ('SIGINT', 130)])
def test_signals_within_a_second_are_one(tmp_path, name, code):
    """Launchers pass on what all processes got."""
    action = f'[os.kill(os.getpid(), signal.{name}) for _ in range(2)]'
    done = Job(tmp_path, action).run('stopped', step=2, code=code).done
    (line,) = done.complaints
    assert line.startswith(f'train.py: {name}: stopped after ')


def test_a_signal_in_the_last_step_of_an_epoch_is_no_step_lost(tmp_path):
    job = Job(tmp_path, TERMINATE)
    stopped = job.run('stopped', step=5, code=143)
    assert stopped.checkpoints[-1] == 'e0000.s000005.r1of2.pth'
    assert not (stopped.folder / 'metrics.jsonl').exists()
    check_same(job.run('stopped', '--resume'), job.run('straight'))


@pytest.mark.parametrize('size', [1, 3])
def test_another_number_of_workers_goes_on_at_the_same_sample(tmp_path, size):
    job = Job(tmp_path, TERMINATE)
    stopped = job.run('stopped', step=3, code=143)
    job.words[-1] = str(size)
    again = job.run('other', '--resume', str(stopped.folder))
    assert [line['epoch'] for line in again.metrics] == [0, 1]
    first = 3 * 2 * 128 // (128 * size)  # whole steps of so many workers
    steps = 1437 // size // 128
    samples = [128 * size * (step + 1) for step in range(first, 2 * steps)]
    assert list(again.curve('loss/train')) == samples


def test_auto_begins_in_place_and_refuses_another_model(tmp_path):
    job = Job(tmp_path, TERMINATE, '--configs.train.num_epochs=1')
    run = job.run('runs', '--resume', 'auto')
    for path in (run.folder / 'checkpoints').glob('*.pth'):
        path.write_bytes(path.read_bytes()[:-100])
    again = job.run('runs', '--resume', 'auto')
    (line,) = [line for line in again.done.lines if 'no checkpoint is good' in line]
    assert f'{run.folder}/checkpoints/e0000.r0of2.pth is damaged' in line
    assert again.results == run.results
    assert [path.name for path in run.folder.parent.iterdir()] == [run.folder.name]
    job.file.write_text(
        job.file.read_text().replace('BatchNorm2d(1)', 'BatchNorm2d(1, affine=False)')
    )
    (line,) = job.run('runs', '--resume', 'auto', code=2).done.complaints
    assert 'norm.weight is float32 (1,) in the checkpoint, and missing in the model' in line


def test_a_new_run_still_moves_an_older_one_aside(tmp_path):
    job = Job(tmp_path, TERMINATE, '--configs.train.num_epochs=1')
    run = job.run('runs')
    job.run('runs')
    assert run.folder.with_name(f'{run.folder.name}~1').is_dir()


def test_minutes_save_within_an_epoch(tmp_path):
    job = Job(tmp_path, FAIL, '--configs.checkpoint.every_minutes=0.001')
    failed = job.run('failed', step=10, code=1)
    assert [name for name in failed.checkpoints if name.startswith('e0001.s')]


@pytest.mark.parametrize(
    ('word', 'reason'),
    [
        ('every_steps=0', 'configs.checkpoint.every_steps must be at least 1, got 0'),
        ('every_steps=2.5', 'configs.checkpoint.every_steps = 2.5: expected int'),
        ('every_minutes=0', 'configs.checkpoint.every_minutes must be at least 0.001, got 0'),
    ],
)
def test_intervals_that_cannot_be_meant_are_refused(tmp_path, word, reason):
    done = here(*DIGITS, '--runs', tmp_path, f'--configs.checkpoint.{word}')
    assert (done.code, done.complaints) == (2, [f'train.py: {reason}'])


def test_a_parameter_server_refuses_them(tmp_path):
    words = ['--configs', 'configs/digits/cnn.py', 'configs/dgs/dgs.py', '--runs', tmp_path]
    done = here(*words, '--configs.checkpoint.every_steps=5')
    assert done.code == 2 and 'configs.server.checkpoint_seconds' in done.output


# ---------------------------------------------------------------- signals to real processes


@pytest.mark.slow
def test_torchrun_starts_killed_workers_again_and_they_go_on(tmp_path):
    """Its store outlives them; one command line; the result is that of an undisturbed run."""
    job = Job(
        tmp_path, 'os.kill(os.getpid(), signal.SIGKILL)', '--configs.checkpoint.every_steps=2'
    )
    quiet = 'x = self.norm(x)'  # simulated ranks share the generators of random numbers
    text = re.sub(r'x = (self.norm|torch.nn.functional.drop).*', quiet, job.file.read_text())
    job.file.write_text(text)
    straight = job.run('straight')
    words = ['train.py', *job.words[:-4], '--runs', str(tmp_path / 'killed'), '--resume', 'auto']
    job.file.with_name('step').write_text('8')
    launcher = [*LAUNCHERS['torchrun'], '--max-restarts', '1']
    done = command([*launcher, *words])
    assert done.code == 0, done.output
    check_same(only_run(tmp_path / 'killed', done), straight)


def signalled(process: subprocess.Popen, *numbers: int) -> Done:
    """Send signals once the first epoch has ended; the result."""
    told = next(line for line in process.stdout if 'epoch 0:' in line)
    for number in numbers:
        os.kill(process.pid, number)
    rest, _ = process.communicate(timeout=120)
    return Done(process.returncode, told + rest)


def test_a_signal_ends_a_process_with_its_code(tmp_path):
    pipe = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
    words = [*DIGITS, '--runs', tmp_path, '--configs.train.num_epochs=500']
    done = signalled(start([PYTHON, 'train.py', *words], **pipe), signal.SIGTERM, signal.SIGTERM)
    assert done.code == 143
    (line,) = done.complaints
    assert line.startswith('train.py: SIGTERM: stopped after ')
    assert 'Traceback' not in done.output
