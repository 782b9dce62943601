import importlib.util
import os

import pytest

import dgc
from dgc.engines import Launcher, choose, detect, launchers, run

OF_EVERY = {name for names in launchers.VARIABLES.values() for name in names}
ENVIRONMENTS = {
    'horovodrun': {
        'HOROVOD_RANK': '5',
        'HOROVOD_SIZE': '8',
        'HOROVOD_LOCAL_RANK': '1',
        'HOROVOD_LOCAL_SIZE': '4',
    },
    'torchrun': {'RANK': '5', 'WORLD_SIZE': '8', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '4'},
    'mpirun': {
        'OMPI_COMM_WORLD_RANK': '5',
        'OMPI_COMM_WORLD_SIZE': '8',
        'OMPI_COMM_WORLD_LOCAL_RANK': '1',
        'OMPI_COMM_WORLD_LOCAL_SIZE': '4',
    },
    'slurm': {
        'SLURM_PROCID': '5',
        'SLURM_STEP_NUM_TASKS': '8',
        'SLURM_LOCALID': '1',
        'SLURM_STEP_TASKS_PER_NODE': '4(x2)',
    },
}


@pytest.fixture
def environment(monkeypatch):
    """Sets variables in an environment that no launcher has touched."""
    for name in OF_EVERY | {'MASTER_ADDR', 'MASTER_PORT'}:
        monkeypatch.delenv(name, raising=False)

    def add(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return add


@pytest.mark.parametrize('name', ENVIRONMENTS)
def test_each_launcher_is_known_by_what_it_leaves(environment, name):
    environment(ENVIRONMENTS[name])
    assert detect() == Launcher(name, rank=5, size=8, local_rank=1, local_size=4)


def test_without_a_launcher_there_is_one_worker(environment):
    assert detect() == Launcher('none', 0, 1, 0, 1)
    assert choose(detect()) == 'local'


def test_horovodrun_over_mpi_inside_slurm_is_horovodrun(environment):
    for name in ('slurm', 'mpirun', 'horovodrun'):
        environment(ENVIRONMENTS[name])
    assert detect().name == 'horovodrun'


def test_a_rank_without_a_size_is_no_launcher(environment):
    environment({'RANK': '3', 'SLURM_PROCID': '0'})
    assert detect().name == 'none'


def test_without_local_numbers_all_are_on_one_machine(environment):
    environment({'RANK': '3', 'WORLD_SIZE': '4'})
    assert detect() == Launcher('torchrun', 3, 4, 0, 4)


@pytest.mark.parametrize('tasks', ['3', '3,1', '3(x2),2'])
def test_slurm_writes_its_tasks_in_several_ways(environment, tasks):
    environment(ENVIRONMENTS['slurm'] | {'SLURM_STEP_TASKS_PER_NODE': tasks})
    assert detect().local_size == 3


@pytest.mark.parametrize('installed', [True, False])
@pytest.mark.parametrize('name', ENVIRONMENTS)
def test_the_engine_fits_the_launcher(environment, monkeypatch, name, installed):
    spec = object() if installed else None
    monkeypatch.setattr(importlib.util, 'find_spec', lambda module: spec)
    environment(ENVIRONMENTS[name])
    expected = {
        'horovodrun': 'horovod',
        'torchrun': 'torch',
        'mpirun': 'horovod' if installed else 'torch',
        'slurm': 'horovod' if installed else 'torch',
    }
    assert choose(detect()) == expected[name]


@pytest.mark.parametrize('name', ENVIRONMENTS)
def test_one_process_is_local_whoever_started_it(environment, name):
    rank, size = launchers.VARIABLES[name][:2]
    environment({rank: '0', size: '1'})
    assert choose(detect()) == 'local'
    assert dgc.create().name == 'local'


@pytest.mark.parametrize('name', ENVIRONMENTS)
def test_a_launcher_that_started_more_than_the_engine_counts_is_refused(environment, name):
    """Ok-Topk#6: with both numbers."""
    environment(ENVIRONMENTS[name])
    with pytest.raises(dgc.EngineError, match=f'local counts 1 workers, {name} started 8'):
        dgc.create('local')


def test_an_unknown_engine_is_refused_with_the_known_ones(environment):
    with pytest.raises(dgc.EngineError, match=r"no engine 'nccl'.*horovod, torch, local"):
        dgc.create('nccl')


def test_a_size_is_for_the_simulated_engine_alone(environment):
    with pytest.raises(dgc.EngineError, match='a size of 4 is for the engine simulated'):
        run(lambda engine: None, 'local', size=4)


def test_run_gives_the_workers_result_on_one_process(environment):
    assert run(lambda engine: (engine.name, engine.size)) == ('local', 1)


class TestExportForTorch:
    @pytest.fixture(autouse=True)
    def _leave_no_trace(self, environment, monkeypatch):
        monkeypatch.setattr(os, 'environ', os.environ.copy())

    def test_torch_reads_what_mpirun_left(self):
        launchers.export_for_torch(Launcher('mpirun', 3, 4, 3, 4))
        exported = {n: os.environ.get(n) for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')}
        assert exported == {'RANK': '3', 'WORLD_SIZE': '4', 'LOCAL_RANK': '3'}
        assert os.environ['MASTER_ADDR'] == '127.0.0.1'

    def test_what_is_set_stays(self):
        os.environ['MASTER_ADDR'] = '10.0.0.7'
        os.environ['MASTER_PORT'] = '1234'
        launchers.export_for_torch(Launcher('torchrun', 0, 2, 0, 2))
        assert (os.environ['MASTER_ADDR'], os.environ['MASTER_PORT']) == ('10.0.0.7', '1234')

    def test_between_machines_the_first_must_be_named_by_the_user(self):
        launchers.export_for_torch(Launcher('slurm', 0, 8, 0, 4))
        assert 'MASTER_ADDR' not in os.environ
