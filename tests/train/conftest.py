import importlib.util
from collections.abc import Callable
from functools import cache

import pytest
from launching import BATCH, BIN, DIGITS, EPOCHS, Run, launch, only_run
from worlds import has_mpi

# Started as users do, where each rank is a Python of its own; the others import torch once for all
# (tests/warm.py).
COLD = 'horovodrun --gloo' if importlib.util.find_spec('horovod') else 'python'


@pytest.fixture(scope='session')
def trained(tmp_path_factory) -> Callable[[str], Run]:
    """Three epochs of the digits under a launcher, started once for all tests that look at it."""

    @cache
    def run(launcher: str) -> Run:
        if 'horovod' in launcher and importlib.util.find_spec('horovod') is None:
            pytest.skip('Horovod is not installed: make horovod')
        if 'mpi' in launcher and not has_mpi():
            pytest.skip('mpirun is not installed, or Horovod was built without MPI')
        if launcher == 'torchrun' and not (BIN / 'torchrun').is_file():
            pytest.skip('torchrun is not installed')
        folder = tmp_path_factory.mktemp(launcher.replace(' ', ''))
        settings = {'num_epochs': EPOCHS, 'batch_size': BATCH}
        words = [f'--configs.train.{name}={value}' for name, value in settings.items()]
        words = [*DIGITS, *words, '--suffix', '.x', '--runs', folder / 'runs']
        done = launch(launcher, words, cold=launcher == COLD)
        return only_run(folder / 'runs', done)

    return run
