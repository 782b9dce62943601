"""The parts of the emulated cluster that need no network: rates, plans, output, refusals."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

import pytest

from tools.cluster import (
    Cluster,
    ClusterError,
    Counters,
    __main__,
    keeper,
    launchers,
    network,
    output,
    parse_rate,
    report,
    selftest,
)
from tools.cluster.rates import burst, format_rate, link_rates

NAMES = ['dgc1n0', 'dgc1n1']


class TestRates:
    @pytest.mark.parametrize(
        ('text', 'rate'),
        [('1gbit', 1e9), ('100mbit', 1e8), ('2.5MBIT', 2.5e6), ('64kbit', 64e3), ('8000bit', 8e3)],
    )
    def test_they_are_read_and_written(self, text, rate):
        assert parse_rate(text) == rate
        assert parse_rate(format_rate(rate)) == rate

    def test_none_is_no_limit(self):
        assert parse_rate('none') == math.inf and format_rate(math.inf) == 'none'

    @pytest.mark.parametrize('text', ['', '1', 'fast', '1mbps', '-1mbit', '1gbit 2', '1e3bit'])
    def test_what_is_no_rate_is_refused_with_an_example(self, text):
        with pytest.raises(ValueError, match=r'is not a rate: .*such as 100mbit'):
            parse_rate(text)

    @pytest.mark.parametrize('text', ['0mbit', '1kbit'])
    def test_what_would_stand_still_is_refused(self, text):
        with pytest.raises(ValueError, match='too low'):
            parse_rate(text)

    def test_a_burst_is_two_milliseconds_or_sixteen_kilobytes(self):
        assert burst(1e9) == 250_000
        assert burst(1e8) == 25_000
        assert burst(1e7) == 16_000

    def test_one_node_may_be_slower(self):
        assert link_rates(3, '1gbit', {2: '10mbit'}) == [1e9, 1e9, 1e7]

    def test_a_node_that_does_not_exist_is_refused(self):
        with pytest.raises(ValueError, match='there is no node 3: 3 are numbered from 0'):
            link_rates(3, '1gbit', {3: '10mbit'})


class TestPlans:
    @pytest.fixture
    def environment(self, monkeypatch):
        for name in ('RANK', 'HOROVOD_RANK', 'OMPI_COMM_WORLD_SIZE', 'SLURM_PROCID'):
            monkeypatch.setenv(name, '5')
        monkeypatch.setenv('OMPI_MCA_btl_base_verbose', '1')
        monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
        return launchers.environment(2, '10.77.0.1', 29500, {'MINE': 'yes'})

    def test_what_an_outer_launcher_left_is_not_handed_on(self, environment):
        assert not environment.keys() & {
            'RANK',
            'HOROVOD_RANK',
            'OMPI_COMM_WORLD_SIZE',
            'SLURM_PROCID',
        }
        assert environment['OMPI_MCA_btl_base_verbose'] == '1'
        assert environment['MINE'] == 'yes'

    def test_nodes_share_the_cores(self, environment):
        assert environment['OMP_NUM_THREADS'] == str(max(os.cpu_count() // 2, 1))
        assert launchers.environment(999, '', 0, {})['OMP_NUM_THREADS'] == '1'

    def test_set_threads_stay(self, monkeypatch):
        monkeypatch.setenv('OMP_NUM_THREADS', '7')
        assert launchers.environment(2, '', 0, {})['OMP_NUM_THREADS'] == '7'

    def test_torchrun_has_an_agent_on_each_node(self, environment):
        jobs = launchers.torchrun(NAMES, ['worker'], environment)
        assert [(job.machine, job.rank) for job in jobs] == [('dgc1n0', 0), ('dgc1n1', 1)]
        words = ' '.join(jobs[1].command)
        assert words.startswith(f'{sys.executable} -m torch.distributed.run')
        assert '--nnodes 2 --master-addr 10.77.0.1 --master-port 29500 --node-rank 1' in words
        assert words.endswith('--no-python worker')

    def test_horovodruns_workers_know_their_places(self, environment):
        jobs = launchers.horovodrun(NAMES, ['worker'], environment, 1234)
        places = [
            {name.removeprefix('HOROVOD_'): value for name, value in job.environment.items()}
            for job in jobs
        ]
        assert [place['RANK'] for place in places] == ['0', '1']
        assert [place['HOSTNAME'] for place in places] == NAMES
        assert {place['LOCAL_SIZE'] for place in places} == {'1'}
        assert {place['GLOO_RENDEZVOUS_PORT'] for place in places} == {'1234'}

    def test_mpirun_enters_the_nodes_as_by_ssh(self, environment, monkeypatch):
        monkeypatch.setattr(launchers.shutil, 'which', lambda program: '/usr/bin/mpirun')
        (job,) = launchers.mpirun('dgc1sw', NAMES, ['worker'], environment)
        assert job.machine == 'dgc1sw' and job.rank is None
        words = ' '.join(job.command)
        assert '-np 2 -H dgc1n0,dgc1n1' in words and 'enter.sh' in words
        assert '-mca mpi_yield_when_idle 1' in words

    @pytest.mark.parametrize(('user', 'allowed'), [(0, True), (1000, False)])
    def test_mpirun_is_allowed_to_root_alone(self, environment, monkeypatch, user, allowed):
        monkeypatch.setattr(launchers.shutil, 'which', lambda program: '/usr/bin/mpirun')
        monkeypatch.setattr(os, 'geteuid', lambda: user)
        monkeypatch.delenv('OMPI_ALLOW_RUN_AS_ROOT', raising=False)
        environment = launchers.environment(2, '', 0, {})
        (job,) = launchers.mpirun('dgc1sw', NAMES, ['worker'], environment)
        assert ('OMPI_ALLOW_RUN_AS_ROOT' in job.environment) == allowed

    def test_a_missing_mpirun_is_named_with_its_remedy(self, monkeypatch):
        monkeypatch.setattr(launchers.shutil, 'which', lambda program: None)
        with pytest.raises(ClusterError, match='apt-get install openmpi-bin'):
            launchers.mpirun('dgc1sw', NAMES, ['worker'], {})

    def test_host_names_lead_to_addresses_that_others_reach(self, monkeypatch, tmp_path):
        monkeypatch.setattr(network, 'HOSTS', tmp_path)
        monkeypatch.setattr(network.socket, 'gethostname', lambda: 'machine')
        network.write_hosts('dgc1n1', '10.77.0.2', NAMES)
        lines = (tmp_path / 'dgc1n1/hosts').read_text().splitlines()
        assert '10.77.0.2 dgc1n1 machine' in lines
        assert '10.77.0.1 dgc1n0' in lines


class TestOutput:
    def test_mpiruns_tags_are_removed_and_ranks_separated(self, tmp_path, monkeypatch, capfd):
        with (tmp_path / 'out').open('wb') as file:
            take = output.Untagged(file.fileno())
            take(b'[1,0]<stdout>:epoch[1,1]<stdout>:their[1,0]<stdout>: 1\n')
            take(b'[1,1]<stdout>: line\n')
            take(b'[1,0]<stderr>:trouble\n')
            take(b'mpirun has something to say\n')
        assert (tmp_path / 'out').read_bytes() == b'epoch 1\n'
        said = '[1] their line\ntrouble\nmpirun has something to say\n'
        assert capfd.readouterr().err == said

    def test_what_comes_in_parts_is_handed_on_at_once(self):
        reader, writer = os.pipe()
        parts = []
        pump = output.Pump(os.fdopen(reader, 'rb'), parts.append, by_line=False)
        os.write(writer, b'50%\r')
        deadline = time.monotonic() + 10
        while not parts and time.monotonic() < deadline:
            time.sleep(0.01)
        assert parts == [b'50%\r']
        os.close(writer)
        pump.join(10)
        assert not pump.is_alive()


class TestReport:
    COMMAND = ('train.py', '--configs', 'configs/digits/cnn.py', '--suffix', '.x')

    @pytest.fixture
    def metrics(self, tmp_path):
        folder = tmp_path / 'digits.cnn.x.np2'
        folder.mkdir()
        lines = [json.dumps({'epoch': epoch, 'bytes/sent': 1000.0}) for epoch in range(3)]
        (folder / 'metrics.jsonl').write_text('\n'.join(lines) + '\n')
        return ['--runs', str(tmp_path)]

    def test_a_training_run_counts_what_it_sends(self, metrics):
        assert report.counted_by_training([*self.COMMAND, *metrics], 2) == 3000

    @pytest.mark.parametrize('more', [['--resume'], ['--evaluate']])
    def test_a_file_of_more_than_this_run_is_left_out(self, metrics, more):
        assert report.counted_by_training([*self.COMMAND, *metrics, *more], 2) is None

    def test_no_file_is_left_out(self, metrics):
        assert report.counted_by_training([*self.COMMAND, *metrics], 3) is None

    def test_another_program_is_left_out(self):
        assert report.counted_by_training(['-m', 'tools.preflight'], 2) is None

    def test_the_column_is_there_only_with_numbers(self):
        traffic = [Counters(4_000_000, 5_000_000)] * 2
        assert 'gradients' not in report.traffic_table(NAMES, traffic, None)
        table = report.traffic_table(NAMES, traffic, 3_000_000).splitlines()
        assert table[2].split() == ['dgc1n0', *['4.000', 'MB', '5.000', 'MB', '3.000', 'MB']]
        assert table[3].split() == ['dgc1n1', *['4.000', 'MB', '5.000', 'MB']]

    def test_traffic_is_a_difference(self):
        assert report.since([Counters(1, 2)], [Counters(11, 22)]) == [Counters(10, 20)]


class TestVerdicts:
    @pytest.mark.parametrize(
        ('seconds', 'bulk', 'verdict'),
        [
            (0.155, 9.6e6, 'ok'),
            (0.155, math.nan, 'ok'),  # the bulk was not tried
            (0.001, 9.6e6, 'too fast'),  # as through a bucket of 256 kB
            (0.155, 12e6, 'too fast'),
            (0.300, 9.6e6, 'too slow'),
            (0.155, 7e6, 'too slow'),
        ],
    )
    def test_of_a_link_of_ten_megabits(self, seconds, bulk, verdict):
        link = selftest.Link(0, 1, 1e7, 200_000, seconds, bulk)
        assert link.verdict == verdict
        assert link.least == pytest.approx(0.1545, abs=1e-4)
        assert link.ideal == pytest.approx(0.1673, abs=1e-4)

    def test_of_a_link_without_a_limit(self):
        link = selftest.Link(0, 1, math.inf, 200_000, 0.0, 5e9)
        assert link.verdict == 'no limit'
        assert 'no limit' in selftest.table([link])

    @pytest.mark.parametrize('nodes', [2, 3, 4, 5])
    def test_no_node_sends_while_it_receives(self, nodes):
        rates = [1e7] * nodes
        delays = selftest.delays(rates, [(200_000, 875_000)] * nodes)
        for node, (message, bulk) in enumerate(delays):
            before = delays[node - 1]
            assert abs(message - before[0]) > 0.16 and abs(bulk - before[1]) > 0.7
        assert max(message for message, _ in delays) + 0.16 < min(bulk for _, bulk in delays)

    def test_fast_links_get_messages_beyond_their_bursts(self):
        assert selftest.message_size(1e7) == 200_000
        assert selftest.message_size(1e9) == 1_000_000


@pytest.mark.parametrize('python', [[], ['python'], ['python3']])
def test_python_may_stand_before_the_program(python):
    arguments = __main__.parse(['--nodes', '2', '--', *python, 'train.py', '--seed', 'python'])
    assert arguments.command == ['train.py', '--seed', 'python']


class TestRefusals:
    """One line that says what is wrong, and exit code 2."""

    @pytest.mark.parametrize(
        ('arguments', 'message'),
        [
            (['--rate', '1gbyte', '--', 'x'], "'1gbyte' is not a rate"),
            (['--nodes', '0', '--', 'x'], '1 to 250 nodes, not 0'),
            (['--slow', '9:1mbit', '--', 'x'], 'there is no node 9'),
            (['--slow', '1mbit', '--', 'x'], 'such as 3:100mbit'),
            (['--launcher', 'ssh', '--', 'x'], "invalid choice: 'ssh'"),
            ([], 'give a program after --'),
            (['--self-test', '--', 'x'], '--self-test alone'),
        ],
    )
    def test_of_arguments(self, arguments, message, capsys):
        with pytest.raises(SystemExit, match='2'):
            __main__.main(arguments)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith('tools.cluster: ') and message in line

    def test_without_root(self, monkeypatch, capsys):
        monkeypatch.setattr(os, 'geteuid', lambda: 1000)
        assert __main__.main(['--self-test']) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert 'need root' in line and 'sudo' in line

    @pytest.mark.parametrize('missing', ['ip', 'tc', 'unshare'])
    def test_without_a_program(self, monkeypatch, capsys, missing):
        monkeypatch.setattr(os, 'geteuid', lambda: 0)
        monkeypatch.setattr(
            network.shutil, 'which', lambda program: None if program == missing else program
        )
        assert __main__.main(['--self-test']) == 2
        (line,) = capsys.readouterr().err.splitlines()
        package = 'util-linux' if missing == 'unshare' else 'iproute2'
        assert f'{missing} is not installed: apt-get install {package}' in line

    def test_of_a_launcher(self):
        with pytest.raises(ValueError, match="no launcher 'ssh': choose one of torchrun"):
            Cluster(2).run(['x'], 'ssh')

    def test_a_command_that_failed_is_named_with_its_exit_code(self):
        with pytest.raises(ClusterError, match=r'`sh -c exit 3` failed: exit code 3'):
            network.run_command('sh', '-c', 'exit 3')


class TestNames:
    def test_owners_are_found_by_their_names(self, monkeypatch, tmp_path):
        for name in ('dgc12n0', 'dgc12sw', 'dgc12-1n0', 'dgc123n0', 'mine', 'dgcn0', 'dgc1x'):
            (tmp_path / name).touch()
        monkeypatch.setattr(keeper, 'NAMESPACES', tmp_path)
        monkeypatch.setattr(keeper, 'HOSTS', tmp_path / 'none')
        assert keeper.ours('dgc12') == {'dgc12n0': 12, 'dgc12sw': 12}
        assert keeper.ours('dgc12-1') == {'dgc12-1n0': 12}
        assert set(keeper.ours()) == {'dgc12n0', 'dgc12sw', 'dgc12-1n0', 'dgc123n0'}

    def test_leftovers_are_those_of_dead_owners(self, monkeypatch, tmp_path):
        dead = int(Path('/proc/sys/kernel/pid_max').read_text()) + 1
        for owner in (os.getpid(), dead):
            (tmp_path / f'dgc{owner}n0').touch()
        monkeypatch.setattr(keeper, 'NAMESPACES', tmp_path)
        monkeypatch.setattr(keeper, 'HOSTS', tmp_path / 'none')
        assert keeper.leftovers() == [f'dgc{dead}n0']

    def test_two_clusters_of_one_process_differ(self):
        assert not set(Cluster(2).names) & set(Cluster(2).names)
