"""Four workers train with each exchange: real processes as simulated ones, each time alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from launching import SIMULATED, Run, here, only_run

STACKS = {
    'gtopk': ['dgc/fp16', 'gtopk/wm4'],
    'gtopk doubling': ['dgc/wm5', 'gtopk/doubling', 'gtopk/mc'],
    'spardl': ['dgc/wm5', 'spardl/gres'],
    'spardl teams': ['dgc/packed', 'dgc/int8', 'spardl/teams2', 'spardl/mc'],
    'oktopk': ['dgc/wm5', 'oktopk/periodic'],
    'hierarchical': ['dgc/wm5', 'hierarchical/gtopk', 'hierarchical/two'],
    'chunk': ['dgc/wm5', 'chunk/chunk16'],
}
STEPS = 10

every = pytest.mark.parametrize('stack', STACKS.values(), ids=STACKS)


def words(folder: Path, stack: Sequence[str]) -> list[str]:
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
    changed = [f'--configs.{name}={value}' for name, value in settings.items()]
    options = ['--devices', 'cpu', '--suffix', '.x', '--runs', str(folder)]
    return ['--configs', *files, *changed, *options]


def losses(run: Run) -> list[float]:
    """Of the first steps."""
    return list(run.curve('loss/train').values())[:STEPS]


@pytest.mark.slow
@pytest.mark.xdist_group('torchrun 4')
@every
def test_real_processes_train_as_simulated_ones_which_do_it_alike_each_time(
    worlds, tmp_path, stack
):
    """Once here and again in another process: what differs from process to process shows too."""
    real, once, again = (tmp_path / name for name in ('real', 'once', 'again'))
    first = only_run(once, here(*words(once, stack), *SIMULATED, '4'))
    other = worlds('python', 1).run('launching:in_world', *words(again, stack), *SIMULATED, '4')
    ranks = worlds('torchrun', 4).run('launching:in_world', *words(real, stack))
    assert len(losses(first)) == STEPS
    assert losses(first) == losses(only_run(again, other[0]))
    assert losses(only_run(real, ranks[0])) == pytest.approx(losses(first), rel=1e-4)
    assert first.metrics[0]['ratio'] < 0.2
