"""train.py --show: what would be trained, without training."""

from __future__ import annotations

import pytest
from launching import DIGITS, SIMULATED, here


@pytest.mark.parametrize(
    ('words', 'end'),
    [
        ([], '.np1'),
        ([*SIMULATED, '4', '--suffix', '.try'], '.try@num_epochs=7.np4'),
        (['--name', 'mine'], 'mine'),
    ],
)
def test_the_resolved_configuration_and_the_run_are_shown(tmp_path, words, end):
    done = here(*DIGITS, *words, '--runs', tmp_path, '--configs.train.num_epochs', '7', '--show')
    first, *lines = done.output.splitlines()
    assert done.code == 0
    assert first.startswith(f'# {tmp_path}/') and first.endswith(end)
    assert 'configs.train.num_epochs = 7' in lines
    assert 'configs.train.scheduler.T_max = 5' in lines  # derived: less 2 of warm-up
    assert not list(tmp_path.iterdir())  # nothing is trained


def test_workers_of_a_server_are_those_of_the_settings(tmp_path):
    stack = ['--configs', 'configs/digits/cnn.py', 'configs/dgs/dgs.py', '--devices', 'cpu']
    done = here(*stack, '--configs.server.workers', '3', '--runs', tmp_path, '--show')
    assert done.output.splitlines()[0].endswith('.np3')


def test_what_cannot_be_trained_is_refused_all_the_same(tmp_path):
    done = here(*DIGITS, '--runs', tmp_path, '--configs.log.axis', 'hours', '--show')
    assert done.code == 2
    assert "configs.log.axis = 'hours': it is one of samples, steps" in done.output
