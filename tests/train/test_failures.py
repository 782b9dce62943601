"""One rank dies, or its gradient is not finite: all end, soon, and the cause is printed."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
import torch
from launching import DIGITS, PYTHON, SIMULATED, here, launch, start

# The seed of the first epoch, 42 + rank, tells the ranks apart under every engine.
MODEL = """
import torch
from models.digits import DigitsCNN
from utils.config import Config, configs


class Unlucky(DigitsCNN):
    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += self.training
        if torch.initial_seed() == 42 + RANK and self.step == 3:
            ACTION
        return super().forward(x)


configs.model = Config(Unlucky)
"""
DIE = "raise RuntimeError('the machine of rank 1 is on fire')"
NAN = 'return super().forward(x) + self.hidden.weight.sum() * torch.nan'


def stack(folder, action: str, rank: int = 1) -> list[str]:
    """The digits with a model that does ``action`` in the third step of ``rank``."""
    path = folder / 'unlucky.py'
    text = MODEL.replace('ACTION', action).replace('RANK', str(rank))
    path.write_text(text)
    words = ['--configs', 'configs/digits/cnn.py', str(path), *DIGITS[2:]]
    return [*words, '--configs.train.num_epochs=30', '--runs', str(folder / 'runs')]


@pytest.mark.slow
@pytest.mark.parametrize(
    'launcher', ['torchrun', pytest.param('horovodrun --gloo', marks=pytest.mark.horovod)]
)
def test_a_rank_that_dies_takes_the_others_with_it(launcher, tmp_path, trained):
    usual = trained(launcher).done.seconds  # most of it the launcher's start; skips without it
    done = launch(launcher, stack(tmp_path, DIE))
    assert done.code != 0
    # Where the launcher lets the other rank live on, that one says that it has lost the connection.
    causes = [
        line for line in done.complaints if 'the connection to another rank is lost' not in line
    ]
    assert causes == ['train.py: rank 1: RuntimeError: the machine of rank 1 is on fire']
    assert done.seconds < usual + 20
    (folder,) = (tmp_path / 'runs').iterdir()
    assert not (folder / 'checkpoints').exists()  # all were in the first epoch


def test_a_simulated_rank_that_dies_ends_the_simulation(tmp_path):
    done = here(*stack(tmp_path, DIE), *SIMULATED, '3')
    assert done.code == 1
    assert done.complaints == ['train.py: RuntimeError: the machine of rank 1 is on fire']
    assert f'  File "{tmp_path}/unlucky.py", line 15, in forward' in done.lines


@pytest.mark.parametrize(('rank', 'size'), [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)])
def test_a_gradient_that_is_not_finite_stops_all_with_one_line(tmp_path, rank, size):
    done = here(*stack(tmp_path, NAN, rank), *SIMULATED, str(size))
    assert done.code == 3
    (line,) = done.complaints
    assert line.startswith(f'train.py: rank {rank}: not finite: gradient of ')
    assert 'hidden.weight' in line
    # docs/failures.md, row 21: in the first epoch there is no checkpoint.
    assert 'start again: no epoch has been saved yet that --resume could' in line
    assert 'Traceback' not in done.output


def test_once_an_epoch_is_saved_it_advises_to_resume(tmp_path):
    """docs/failures.md, row 21."""
    path = tmp_path / 'unlucky.py'
    second_epoch = MODEL.replace('RANK', '1_000_003').replace('== 3', '> 0')
    path.write_text(second_epoch.replace('ACTION', NAN))
    words = ['--configs', 'configs/digits/cnn.py', str(path), *DIGITS[2:]]
    words += ['--configs.train.batch_size=512', '--runs', str(tmp_path / 'runs')]
    done = here(*words)
    assert done.code == 3
    (line,) = done.complaints
    assert line.endswith('lower the learning rate or clip, then continue with --resume')


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_stops_all_ranks_of_a_launcher(tmp_path):
    done = launch('torchrun', stack(tmp_path, NAN))
    assert done.code != 0
    assert len(done.complaints) == 1, done.output
    (line,) = done.complaints
    assert line.startswith('train.py: rank 1: not finite: gradient of ')
    assert 'exitcode  : 3' in done.output  # what torchrun says of its first failure


def test_a_model_that_is_lucky_trains_on(tmp_path):
    """The models above fail because of what they do, not of how they are made."""
    words = [*stack(tmp_path, NAN, rank=7), '--configs.train.num_epochs=1']
    assert here(*words, '--configs.train.batch_size=64', *SIMULATED, '2').code == 0
    (folder,) = (tmp_path / 'runs').iterdir()
    state = torch.load(folder / 'checkpoints/e0000.r1of2.pth', weights_only=True)
    assert all(tensor.isfinite().all() for tensor in state['model'].values())


@pytest.mark.parametrize('words', [[], [*SIMULATED, '2']], ids=['alone', 'simulated'])
def test_ctrl_c_ends_it_with_one_line_and_it_goes_on(tmp_path, words):
    arguments = ['train.py', *DIGITS, *words, '--configs.train.batch_size', '256']
    arguments += ['--configs.train.num_epochs', '300', '--runs', str(tmp_path)]
    pipe = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
    process = start([PYTHON, *arguments], **pipe)
    told = next(line for line in process.stdout if line.startswith('epoch 1:'))
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, told + rest
    (line,) = [line for line in rest.splitlines() if line.startswith('train.py:')]
    assert line.startswith('train.py: SIGINT: stopped after ')
    assert line.endswith(': --resume continues there')
    assert 'Traceback' not in rest and 'terminate' not in rest
    (run,) = tmp_path.iterdir()
    before = len((run / 'metrics.jsonl').read_text().splitlines())
    again = here(*arguments[1:], '--resume', '--configs.train.num_epochs', str(before + 1))
    assert again.code == 0, again.output
    lines = (run / 'metrics.jsonl').read_text().splitlines()
    assert [json.loads(line)['epoch'] for line in lines] == list(range(before + 1))
