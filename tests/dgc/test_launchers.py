"""Every launcher's environment, read without starting one."""

import importlib.util
import os
import socket
import time

import pytest

import dgc
from dgc import engines
from dgc.engines import Launcher, choose, detect, launchers, place, run, torch_distributed

OF_EVERY = {name for names in launchers.VARIABLES.values() for name in names} | {
    *('MASTER_ADDR', 'MASTER_PORT', 'DGC_LAUNCHER'),
    *('SLURM_NODEID', 'SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST'),
}
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
    for name in OF_EVERY:
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


@pytest.mark.parametrize('address', [None, '', '127.0.0.1', 'localhost', '::1'])
def test_ranks_that_meet_on_the_loopback_are_on_one_machine(environment, address):
    """failures row 17."""
    environment({'RANK': '3', 'WORLD_SIZE': '4'})
    environment({} if address is None else {'MASTER_ADDR': address})
    assert detect() == Launcher('torchrun', 3, 4, 3, 4)


@pytest.mark.parametrize(
    'local', [{}, {'LOCAL_RANK': '1'}, {'LOCAL_RANK': '', 'LOCAL_WORLD_SIZE': ''}]
)
def test_kubernetes_does_not_say_which_ranks_share_a_machine(environment, local):
    """failures row 17: neither the world's size nor the loopback address is assumed."""
    environment({'RANK': '3', 'WORLD_SIZE': '4', 'MASTER_ADDR': 'job-0', **local})
    assert detect() == Launcher('torchrun', 3, 4, 0, 1, placed=False)
    assert detect().device_index == 3  # GPU 3 modulo those that it sees


class Store(dict):
    """A store of torch.distributed that holds what is set."""

    def set(self, key, value):
        self[key] = value.encode()

    get = dict.__getitem__


def test_the_machines_of_ranks_are_compared_where_no_launcher_says_them(monkeypatch):
    """failures row 17: ranks 0, 2 and 3 share a pod, rank 1 is in another."""
    store, unknown = Store(), Launcher('torchrun', 0, 4, 0, 1, placed=False)
    for rank in range(4):
        store.set(f'dgc/machine/{rank}', 'b' if rank == 1 else 'a')
    places = []
    for rank in range(4):
        monkeypatch.setattr(place, 'machine', lambda rank=rank: 'b' if rank == 1 else 'a')
        places.append(place.place(unknown, store, rank, 4))
    assert places == [(0, 3), (0, 1), (1, 3), (2, 3)]


def test_a_process_group_that_the_launcher_did_not_start_is_compared_too():
    """failures row 17: mp.spawn, whose processes have no variables."""
    store = Store({'dgc/machine/1': b'elsewhere'})
    assert place.place(Launcher('none', 0, 1, 0, 1), store, 0, 2) == (0, 1)


def test_what_a_launcher_says_of_machines_is_taken():
    assert place.place(Launcher('torchrun', 5, 8, 1, 4), Store(), 5, 8) == (1, 4)


def test_processes_of_one_machine_name_it_alike():
    assert place.machine() == place.machine()
    assert socket.gethostname() in place.machine()


@pytest.mark.parametrize(
    ('tasks', 'node', 'expected'),
    [
        ('4', '0', 4),
        ('4(x2)', '1', 4),
        ('2(x2),5', '0', 2),
        ('2(x2),5', '1', 2),
        ('2(x2),5', '2', 5),
        ('2,5(x3),3', '4', 3),
        ('4(x2)', None, 4),  # alike on all nodes
    ],
)
def test_slurm_lists_the_tasks_of_every_node(environment, tasks, node, expected):
    """failures row 17: the last node of 2(x2),1 was read as one of two tasks."""
    environment(ENVIRONMENTS['slurm'] | {'SLURM_STEP_TASKS_PER_NODE': tasks})
    environment({} if node is None else {'SLURM_NODEID': node})
    assert (detect().local_size, detect().placed) == (expected, True)


@pytest.mark.parametrize(
    ('tasks', 'node'),
    [('2(x2),1', None), ('2(x2),1', '3'), ('many', '0'), ('', '0'), ('1', '0'), ('9', '0')],
)
def test_slurm_that_does_not_say_the_node_s_tasks_leaves_them_to_the_engine(
    environment, tasks, node
):
    """failures row 17. One task beside local rank 1, and more tasks than ranks, are no answer."""
    environment(ENVIRONMENTS['slurm'] | {'SLURM_STEP_TASKS_PER_NODE': tasks})
    environment({} if node is None else {'SLURM_NODEID': node})
    assert detect() == Launcher('slurm', 5, 8, 0, 1, placed=False)


@pytest.mark.parametrize(
    ('nodes', 'first'),
    [
        ('gpu7', 'gpu7'),
        ('gpu7,gpu9', 'gpu7'),
        ('gpu[03-07,9],login', 'gpu03'),
        ('gpu[8,9-12]', 'gpu8'),
        ('rack[1-2]node[10-19].site', 'rack1node10.site'),
    ],
)
def test_the_first_host_of_slurm_serves_the_store(environment, monkeypatch, nodes, first):
    """failures row 17: plain srun."""
    assert launchers.first_host(nodes) == first
    monkeypatch.setattr(os, 'environ', os.environ.copy())
    environment(ENVIRONMENTS['slurm'] | {'SLURM_JOB_NODELIST': nodes})
    launchers.export_for_torch(detect())
    assert os.environ['MASTER_ADDR'] == first


@pytest.mark.parametrize('name', ENVIRONMENTS)
def test_an_empty_variable_is_unset(environment, name):
    """failures row 17: RANK='' was a traceback."""
    environment(dict.fromkeys(ENVIRONMENTS[name], ''))
    assert detect() == Launcher('none', 0, 1, 0, 1)


@pytest.mark.parametrize(
    ('variables', 'message'),
    [
        ({'RANK': 'first', 'WORLD_SIZE': '2'}, "RANK='first' in the environment is no whole"),
        ({'RANK': '0', 'WORLD_SIZE': '2', 'LOCAL_RANK': 'x'}, "LOCAL_RANK='x' in the environment"),
        ({'RANK': '2', 'WORLD_SIZE': '2'}, 'RANK=2 and WORLD_SIZE=2: ranks are counted from 0'),
        ({'RANK': '-1', 'WORLD_SIZE': '2'}, 'RANK=-1 and WORLD_SIZE=2'),
        ({'DGC_LAUNCHER': 'srun'}, "DGC_LAUNCHER='srun' is no launcher; choose one of horovodrun"),
        ({'DGC_LAUNCHER': 'slurm'}, 'DGC_LAUNCHER=slurm, which sets SLURM_PROCID and'),
    ],
)
def test_variables_that_cannot_be_read_are_named(environment, variables, message):
    """failures row 17."""
    environment(variables)
    with pytest.raises(dgc.EngineError, match=message):
        detect()


@pytest.mark.parametrize('name', ENVIRONMENTS)
def test_a_process_may_run_alone_within_a_job(environment, name):
    """failures row 17: a shell within a step of four Slurm tasks."""
    environment(ENVIRONMENTS[name] | {'DGC_LAUNCHER': 'none'})
    assert detect() == Launcher('none', 0, 1, 0, 1)
    assert dgc.create().name == 'local'


def test_the_launcher_can_be_named_where_several_have_left_variables(environment):
    """failures row 17."""
    for variables in ENVIRONMENTS.values():
        environment(variables)
    environment({'DGC_LAUNCHER': 'slurm'})
    assert detect().name == 'slurm'


def horovod_is(monkeypatch, installed, mpi):
    """Let Horovod look installed, or not, and built with MPI, or not."""
    spec = object() if installed else None
    monkeypatch.setattr(importlib.util, 'find_spec', lambda module: spec)
    monkeypatch.setattr(engines, 'built_with_mpi', lambda: mpi)


@pytest.mark.parametrize(('installed', 'mpi'), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize('name', ENVIRONMENTS)
def test_the_engine_fits_the_launcher(environment, monkeypatch, name, installed, mpi):
    """failures row 17: a Horovod without MPI does not connect what mpirun and srun start."""
    horovod_is(monkeypatch, installed, mpi)
    environment(ENVIRONMENTS[name])
    expected = {
        'horovodrun': 'horovod',
        'torchrun': 'torch',
        'mpirun': 'horovod' if mpi else 'torch',
        'slurm': 'horovod' if mpi else 'torch',
    }
    assert choose(detect()) == expected[name]


@pytest.mark.parametrize('name', ['mpirun', 'slurm'])
def test_a_horovod_without_mpi_is_refused_with_the_remedies(environment, monkeypatch, name):
    """failures row 17."""
    horovod_is(monkeypatch, installed=True, mpi=False)
    environment(ENVIRONMENTS[name])
    with pytest.raises(dgc.EngineError, match='built without MPI') as raised:
        dgc.create('horovod')
    text = str(raised.value)
    assert name in text
    assert all(remedy in text for remedy in ('horovodrun', 'engine.name', 'install_horovod.sh'))


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
    with pytest.raises(dgc.EngineError, match=f'local counts 1 workers, {name} started 8.*=none'):
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

    def test_an_unknown_place_is_not_exported(self):
        launchers.export_for_torch(Launcher('torchrun', 3, 4, 0, 1, placed=False))
        assert 'LOCAL_RANK' not in os.environ
        assert 'MASTER_ADDR' not in os.environ

    def test_an_empty_variable_is_replaced(self):
        os.environ['MASTER_PORT'] = ''
        launchers.export_for_torch(Launcher('mpirun', 0, 2, 0, 2))
        assert os.environ['MASTER_PORT'] == '29500'

    def test_a_host_without_ipv4_has_a_loopback_address(self, monkeypatch):
        """failures row 17."""

        def bind(self, address):
            raise OSError(99, 'Cannot assign requested address')

        monkeypatch.setattr(launchers.socket, 'socket', type('S', (socket.socket,), {'bind': bind}))
        launchers.export_for_torch(Launcher('mpirun', 0, 2, 0, 2))
        assert os.environ['MASTER_ADDR'] == '::1'


@pytest.mark.parametrize(
    ('variables', 'error', 'message'),
    [
        (
            {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '29500'},
            RuntimeError('failed to listen. port: 29500, code: -98, name: EADDRINUSE\nframe #0'),
            'MASTER_PORT=29500 is in use on this machine: set MASTER_PORT to a free port',
        ),
        ({}, ValueError('environment variable MASTER_ADDR expected'), 'or set MASTER_ADDR to the'),
    ],
    ids=['port', 'address'],
)
def test_a_group_that_cannot_be_made_names_the_variable(
    environment, monkeypatch, variables, error, message
):
    """failures row 17: for a port that was taken, the remedy named MASTER_ADDR."""

    def fail(*arguments):
        raise error

    environment(variables)
    monkeypatch.setattr(torch_distributed, 'make_default_group', fail)
    with pytest.raises(dgc.EngineError, match=message) as raised:
        torch_distributed.start_default_group('gloo', engines.Patience())
    assert '\n' not in str(raised.value)


def test_ranks_that_do_not_start_are_reported(environment, monkeypatch, caplog):
    """failures row 17: within a shell of four Slurm tasks three never come."""
    environment({'RANK': '0', 'WORLD_SIZE': '4', 'MASTER_ADDR': 'a', 'MASTER_PORT': '1'})
    monkeypatch.setattr(torch_distributed, 'make_default_group', lambda *_: time.sleep(0.2))
    torch_distributed.start_default_group('gloo', engines.Patience(warning_seconds=0.05))
    (line,) = caplog.messages
    assert line.startswith('rank 0 has waited 0.05 s for all 4 processes to meet at a:1')
    assert 'DGC_LAUNCHER=none' in line
