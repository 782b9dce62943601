"""Four workers train with each exchange: real processes as simulated ones, each time alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from launching import PYTHON, SIMULATED, Run, command, only_run

STACKS = {
    'gtopk': ['dgc/fp16', 'gtopk/wm4'],
    'gtopk doubling': ['dgc/wm5', 'gtopk/doubling', 'gtopk/mc'],
    'spardl': ['dgc/wm5', 'spardl/gres'],
    'spardl teams': ['dgc/packed', 'dgc/int8', 'spardl/teams2', 'spardl/mc'],
    'oktopk': ['dgc/wm5', 'oktopk/periodic'],
    'hierarchical': ['dgc/wm5', 'hierarchical/gtopk', 'hierarchical/two'],
    'chunk': ['dgc/wm5', 'chunk/chunk16'],
}
TORCHRUN = ['torchrun', '--standalone', '--nproc-per-node', '4']
SIMULATION = [*SIMULATED, '4']
STEPS = 10

every = pytest.mark.parametrize('stack', STACKS.values(), ids=STACKS)


def train(folder: Path, stack: Sequence[str], start: Sequence[str], more: Sequence[str]) -> Run:
    """One epoch of eleven steps of the digits, the ratio at its end from the second step on."""
    files = [f'configs/{name}.py' for name in ('digits/cnn', *stack)]
    settings = {
        'train.num_epochs': 1,
        'train.batch_size': 32,
        'train.compression.compress_ratio': 0.02,
        'train.compression.warmup_epochs': 1,
        'train.compression.warmup_coeff': [0.1],
        'train.compression.warmup_stage_steps': 2,
    }
    words = [f'--configs.{name}={value}' for name, value in settings.items()]
    done = command(
        [*start, 'train.py', '--configs', *files, *words, '--devices', 'cpu', '--suffix', '.x',
         '--runs', folder, *more]
    )  # fmt: skip
    return only_run(folder, done)


def losses(run: Run) -> list[float]:
    """Of the first steps."""
    return list(run.curve('loss/train').values())[:STEPS]


@pytest.mark.slow
@every
def test_real_processes_train_as_simulated_ones_which_do_it_alike_each_time(tmp_path, stack):
    once, again = (
        train(tmp_path / name, stack, [PYTHON], SIMULATION) for name in ('once', 'again')
    )
    real = train(tmp_path / 'real', stack, TORCHRUN, [])
    assert len(losses(once)) == STEPS
    assert losses(once) == losses(again)
    assert losses(real) == pytest.approx(losses(once), rel=1e-4)
    assert once.metrics[0]['ratio'] < 0.2
