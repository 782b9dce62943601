"""Checks of hosts before training: versions, interfaces, speed and warnings."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch

import dgc
from dgc.engines import Launcher
from tools.cluster import Cluster
from tools.harness.machine import bytes_sent
from tools.preflight import __main__, host, verdict
from tools.preflight.host import Host
from tools.preflight.measure import Gather, Measured, Way, measure

CPU = torch.device('cpu')
VERSIONS = {'python': '3.11.7', 'torch': '2.14.1', 'codec': '2'}


def hosts(count: int, **changes) -> list[Host]:
    """One rank each on hosts a, b, c, …"""
    return [
        dataclasses.replace(Host(rank, 'abcdef'[rank], 0, 1, 8, VERSIONS, False), **changes)
        for rank in range(count)
    ]


def measured(rates: list[float], interfaces: list[str] | None = None) -> Measured:
    """Ways of a ring at ``rates`` bit/s."""
    ranks = range(len(rates))
    ways = [
        Way(rank, (rank + 1) % len(rates), 0.001, 10_000_000, 8e7 / rate + 0.001)
        for rank, rate in zip(ranks, rates, strict=True)
    ]
    small, large = Gather(64, 0.003), Gather(1_000_000, 0.303)
    return Measured(ways, small, large, interfaces or ['eth0 10.0.0.1' for _ in ranks])


class TestVersions:
    def test_the_same_everywhere_is_fine(self):
        assert verdict.mismatches(hosts(3)) == []

    def test_the_rank_that_differs_is_named_with_both_versions(self):
        all_hosts = hosts(3)
        all_hosts[2] = dataclasses.replace(all_hosts[2], versions=VERSIONS | {'torch': '2.13.0'})
        said = 'rank 2 on c has torch 2.13.0, rank 0 on a has 2.14.1'
        assert verdict.mismatches(all_hosts) == [said]

    def test_ours_are_all_there(self):
        own = host.this_rank(SimpleNamespace(rank=1, local_rank=1, local_size=2))
        assert own.versions['torch'] == torch.__version__
        assert own.versions['dgc'] == dgc.__version__
        assert own.versions['kernels'] in ('compiled', 'plain')
        assert host.load(own.dump()) == own
        assert len(own.dump()) < __main__.LIMIT

    def test_a_changed_file_is_another_version(self, tmp_path):
        (tmp_path / 'a.py').write_text('x = 1')
        before = host.source_digest(tmp_path)
        assert before == host.source_digest(tmp_path)
        (tmp_path / 'a.py').write_text('x = 2')
        assert host.source_digest(tmp_path) != before

    def test_so_is_one_in_another_language_but_nothing_that_was_made_of_it(self, tmp_path):
        before = host.source_digest(tmp_path)
        (tmp_path / 'a.pyc').write_text('made')
        assert host.source_digest(tmp_path) == before
        (tmp_path / 'kernels.cpp').write_text('int x;')
        assert host.source_digest(tmp_path) != before


class TestInterfaces:
    def test_the_one_that_sent_most_is_in_use(self, monkeypatch):
        monkeypatch.setattr(host, 'address', lambda name: '10.0.0.7')
        before, after = {'lo': 5, 'eth0': 100}, {'lo': 900, 'eth0': 5100, 'eth1': 0}
        assert host.busiest(before, after, 5000) == 'eth0 10.0.0.7'

    def test_none_is_seen_where_the_bytes_went_another_way(self):
        assert host.busiest({'lo': 0}, {'lo': 100}, 5000) == ''

    def test_the_loopback_has_its_address(self):
        assert host.address('lo') == '127.0.0.1'
        assert host.address('no such') == ''
        assert 'lo' in bytes_sent()

    @pytest.mark.parametrize(
        ('launcher', 'address', 'interface', 'remedy'),
        [
            ('torchrun', '127.0.1.1', {}, 'set GLOO_SOCKET_IFNAME'),
            ('torchrun', '127.0.1.1', {'GLOO_SOCKET_IFNAME': 'eth0'}, None),
            ('torchrun', '192.168.1.4', {}, None),
            ('torchrun', None, {}, None),
            # It publishes the address of its name for any interface: tried in namespaces.
            ('horovodrun', '127.0.1.1', {'GLOO_SOCKET_IFNAME': 'eth0'}, '/etc/hosts'),
            ('mpirun', '127.0.1.1', {}, None),
        ],
    )
    def test_a_host_name_that_resolves_to_the_loopback_is_reported(
        self, monkeypatch, launcher, address, interface, remedy
    ):
        def resolve(name):
            if address is None:
                raise OSError('unknown')
            return address

        monkeypatch.setattr(host.socket, 'gethostbyname', resolve)
        said = host.unreachable(Launcher(launcher, 1, 4, 1, 2), interface)
        assert (remedy in said and address in said) if remedy else said == ''
        assert host.unreachable(Launcher(launcher, 1, 4, 1, 4), interface) == ''


class TestModel:
    def test_alpha_and_beta_are_those_of_a_ring(self):
        alpha, beta = 0.0005, 1e-8

        def gather(size):
            return Gather(size, 3 * (alpha + size * beta))

        assert verdict.alpha_beta(gather(64), gather(10**6), 4) == pytest.approx((alpha, beta))

    def test_large_messages_that_cost_nothing_more_have_no_rate(self):
        assert verdict.alpha_beta(Gather(64, 0.003), Gather(10**6, 0.002), 4)[1] == 0
        said = '\n'.join(
            verdict.meaning(dataclasses.replace(measured([1e8]), large=Gather(10**6, 0.002)), 2)
        )
        assert 'no limit measured' in said


class TestWarnings:
    def test_equal_hosts_give_none(self):
        assert verdict.warnings(hosts(4), measured([1e9, 0.9e9, 1e9, 1e9])) == []

    @pytest.mark.parametrize(('count', 'slow'), [(3, 2), (4, 0), (5, 3)])
    def test_a_slow_host_is_named(self, count, slow):
        rates = [1e9] * count
        rates[slow] = rates[slow - 1] = 1e8  # its way out, and the way in
        (said,) = verdict.warnings(hosts(count), measured(rates))
        assert said.startswith(f'rank {slow} on {"abcdef"[slow]} is much slower')

    def test_one_slow_path_is_attributed_to_neither_host(self):
        (said,) = verdict.warnings(hosts(4), measured([1e9, 1e8, 1e9, 1e9]))
        assert 'the path from rank 1 on b to rank 2 on c' in said

    def test_of_two_hosts_neither_is_blamed(self):
        (said,) = verdict.warnings(hosts(2), measured([1e9, 1e8]))
        assert 'the path from rank 1 on b to rank 0 on a' in said

    def test_a_rate_hidden_by_latency_is_not_reported(self):
        ways = [
            Way(0, 1, 0.18, 1_000_000, 0.181),  # seems infinite, but is 44 Mbit/s at least
            Way(1, 2, 0.18, 1_000_000, 0.240),
            Way(2, 0, 0.18, 1_000_000, 0.200),
        ]
        assert verdict.slow_ways(ways) == []
        assert verdict.rate_of(ways[0]) == 'over 44.2 Mbit/s'

    def test_the_loopback_between_hosts_is_reported(self):
        seen = measured([1e9] * 2, ['eth0 10.0.0.1', 'lo 127.0.0.1'])
        (said,) = verdict.warnings(hosts(2), seen)
        assert 'rank 1 on b sends over the loopback lo 127.0.0.1' in said

    def test_the_loopback_on_one_host_is_right(self):
        alone = [dataclasses.replace(h, local_rank=h.rank, local_size=2) for h in hosts(2)]
        assert verdict.warnings(alone, measured([], ['lo 127.0.0.1'] * 2)) == []

    @pytest.mark.parametrize(('cores', 'warned'), [(1, True), (2, False)])
    def test_busy_waiting_on_few_cores_is_reported_with_the_remedy(self, cores, warned):
        said = verdict.warnings(hosts(2, busy_waiting=True, cores=cores), measured([1e9] * 2))
        assert ['mpi_yield_when_idle' in text for text in said] == [True] * warned

    def test_openmpi_waits_busily_unless_it_is_set_to_yield(self):
        started = {'OMPI_COMM_WORLD_SIZE': '2'}
        assert host.spins(started)
        assert not host.spins(started | {host.YIELDS: '1'})
        assert not host.spins({'HOROVOD_SIZE': '2'})


def test_measuring_is_the_same_collectives_on_every_rank():
    """On the simulated engine, which refuses anything else."""
    results = dgc.simulate(3, lambda engine: measure(engine, [0, 1, 2], CPU))
    assert results[0].ways == results[1].ways == results[2].ways
    assert [(way.sender, way.receiver) for way in results[0].ways] == [(0, 1), (1, 2), (2, 0)]
    said = verdict.report(hosts(3), results[0], 'simulated', 'none')
    assert '3 ranks on 3 host(s)' in said and 'estimated alpha' in said


def test_only_one_rank_of_a_host_measures_it():
    shared = [
        dataclasses.replace(h, local_rank=h.rank % 2, local_size=2, name='ab'[h.rank // 2])
        for h in hosts(4)
    ]
    assert verdict.leaders(shared) == [0, 2]


def test_a_single_rank_prints_the_versions(capsys):
    assert __main__.main([]) == 0
    said = capsys.readouterr().out
    assert f'torch {torch.__version__}' in said and 'one rank' in said


@pytest.mark.namespaces
def test_a_slow_node_is_found(tmp_path, warm_python):
    with Cluster(3, '100mbit', {2: '10mbit'}) as cluster, (tmp_path / 'out').open('w') as file:
        assert cluster.run(['-m', 'tools.preflight'], timeout=120, stdout=file) == 0
    said = (tmp_path / 'out').read_text()
    for rank, address in enumerate(cluster.addresses):
        assert re.search(rf'^{rank} +{cluster.names[rank]} +eth0 {address}', said, re.M), said
    (warning,) = re.findall(r'^warning: (.*)', said, re.M)
    assert warning.startswith(f'rank 2 on {cluster.names[2]} is much slower'), said
    rates = [float(rate) for rate in re.findall(r'([\d.]+) Mbit/s', said.split('all-gather')[0])]
    expected = [95, 95, 9.5, 9.5, 9.5, 9.5]  # each of the three ways stands there twice
    assert sorted(rates, reverse=True) == pytest.approx(expected, rel=0.3), said


@pytest.mark.namespaces
@pytest.mark.horovod
def test_other_versions_are_refused_with_the_rank(capfd, warm_python):
    program = (
        'import os, sys, dgc; from tools.preflight import __main__ as preflight\n'
        'if os.environ["HOROVOD_RANK"] == "1": dgc.__version__ = "0.0.7"\n'
        'preflight.PATIENCE = 1; sys.exit(preflight.main([]))'
    )
    with Cluster(2) as cluster:
        assert cluster.run(['-c', program], 'horovodrun', timeout=60) == 2
    said = f'rank 1 on {cluster.names[1]} has dgc 0.0.7, rank 0 on {cluster.names[0]} has 0.1.0'
    assert f'tools.preflight: {said}' in capfd.readouterr().err.splitlines()
