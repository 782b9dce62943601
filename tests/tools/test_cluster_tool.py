"""The emulated cluster: namespaces, rates, launchers, and cleaning up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm

from tools.cluster import Cluster, keeper, selftest
from tools.cluster.workers import enter

ROOT = Path(__file__).parents[2]
WORKER = str(Path(__file__).with_name('cluster_worker.py'))
TRIES = 3  # of measurements that other load may disturb
ENGINES = {'torchrun': 'torch', 'horovodrun': 'horovod', 'mpirun': 'horovod'}
SLEEP = 'import os, sys, time; open(sys.argv[1], "w").write(str(os.getpid())); time.sleep(300)'

pytestmark = pytest.mark.namespaces
launcher_marks = [
    'torchrun',
    pytest.param('horovodrun', marks=pytest.mark.horovod),
    pytest.param('mpirun', marks=[pytest.mark.horovod, pytest.mark.mpi]),
]


def interfaces() -> str:
    """The interfaces of the machine itself."""
    return subprocess.run(['ip', '-o', 'link'], capture_output=True, text=True, check=True).stdout


def tool(*arguments: str, cold: bool = False) -> subprocess.Popen:
    """`python -m tools.cluster`, which handles Ctrl-C even if these tests ignore it.

    Args:
        cold: With the id of the process that is returned, which the names of machines have.
    """
    environment = os.environ | {'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    words = [sys.executable, '-m', 'tools.cluster', *arguments]
    return subprocess.Popen(
        words if cold else warm.warmed(words),
        cwd=ROOT,
        env=environment if cold else environment | warm.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for(condition, seconds: float = 60) -> bool:
    """Whether ``condition()`` comes true in time."""
    deadline = time.monotonic() + seconds
    while not (reached := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(reached)


def alive(process: int) -> bool:
    """Whether there is such a process, one that has ended and is not yet collected not counted."""
    try:
        return Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False


def test_it_is_made_and_gone_and_the_machines_own_network_is_left_alone():
    before = interfaces()
    with Cluster(3, '100mbit', {2: '10mbit'}) as cluster:
        assert interfaces() == before
        assert set(keeper.ours()) >= {*cluster.names, cluster.switch}
        assert cluster.addresses == ['10.77.0.1', '10.77.0.2', '10.77.0.3']
        inside = enter(cluster.names[1], ['hostname'], stdout=subprocess.PIPE)
        assert inside.communicate()[0].decode().strip() == cluster.names[1]
    assert not set(keeper.ours()) & {*cluster.names, cluster.switch}
    assert not any((keeper.HOSTS / name).exists() for name in cluster.names)


def test_it_is_gone_after_an_exception():
    with pytest.raises(ZeroDivisionError), Cluster(2) as cluster:
        raise ZeroDivisionError
    assert not set(keeper.ours()) & {*cluster.names, cluster.switch}


def test_two_at_once_have_their_own_rates_and_counters():
    with Cluster(2, '100mbit') as one, Cluster(2, '20mbit') as other:
        measured(one, bulk=False)
        assert one.counters()[0].sent > 200_000
        assert other.counters()[0].sent < 2_000


def measured(cluster: Cluster, bulk: bool) -> list[selftest.Link]:
    """The links, all of which must hold their rates."""
    for _ in range(TRIES):
        links = selftest.measure(cluster, bulk)
        if {link.verdict for link in links} == {'ok'}:
            return links
    raise AssertionError(selftest.table(links))


def test_links_are_held_to_their_rates_and_to_new_ones():
    with Cluster(2, '10mbit') as cluster:
        for link in measured(cluster, bulk=True):
            assert link.bulk == pytest.approx(1e7, rel=0.15)
            assert (
                0.13 < link.seconds < 0.2 + selftest.LATE
            )  # not the millisecond of a large bucket
        sent, received = cluster.counters()[0]
        assert sent > 1_000_000 and received > 1_000_000
        cluster.set_rate('100mbit')
        for link in measured(cluster, bulk=False):
            assert 0.0125 < link.seconds < 0.02 + selftest.LATE
        cluster.set_rate('none')
        assert selftest.measure(cluster, bulk=False)[0].seconds < 0.014


@pytest.mark.parametrize('launcher', launcher_marks)
def test_launchers_start_one_worker_a_node(launcher):
    process = tool('--nodes', '2', '--launcher', launcher, '--', WORKER, '1', '7')
    out, err = process.communicate(timeout=120)
    assert process.returncode == 7, err  # rank 1 failed first
    assert out.splitlines() == [f'{ENGINES[launcher]} 0 2 1 2.0', 'here 10.77.0.1 1']
    lines = err.splitlines()
    assert f'[1] {ENGINES[launcher]} 1 2 1 2.0' in lines and '[1] here 10.77.0.2 1' in lines
    (counted,) = re.findall(r'^dgc\d+n1 +([\d.]+) MB', err, re.M)
    assert 0.2 < float(counted) < 2, err  # megabytes: 50,000 float32 there, and little else


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_however_it_ends(number, tmp_path):
    started = tmp_path / 'pid'
    process = tool('--nodes', '1', '--', '-c', SLEEP, str(started), cold=True)
    assert wait_for(lambda: started.exists() and started.read_text()), process.communicate()
    worker = int(started.read_text())
    names = [f'dgc{process.pid}n0', f'dgc{process.pid}sw']
    assert alive(worker) and set(names) <= set(keeper.ours())
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    # A killed process has not waited for its keeper; otherwise it has.
    assert wait_for(lambda: not set(keeper.ours()) & set(names), 10)
    assert wait_for(lambda: not alive(worker), 5)


def test_the_next_start_removes_what_a_killed_keeper_could_not():
    program = (
        'import subprocess, time; from tools.cluster import Cluster\n'
        'with Cluster(1) as c:\n'
        '    words = ["ip", "netns", "exec", c.names[0], "sleep", "300"]\n'
        '    inside = subprocess.Popen(words, stdout=subprocess.DEVNULL)\n'
        '    print(c._keeper.pid, inside.pid, *c.names, c.switch, flush=True); time.sleep(300)'
    )
    owner = subprocess.Popen(
        [sys.executable, '-c', program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    its_keeper, inside, *names = owner.stdout.readline().split()
    os.kill(int(its_keeper), signal.SIGKILL)
    owner.kill()
    owner.communicate()
    assert set(names) <= set(keeper.leftovers()) and alive(int(inside))
    with Cluster(1):
        assert not set(keeper.ours()) & set(names)
        assert not alive(int(inside))


@pytest.mark.horovod  # whose launcher is the quickest to start
def test_workers_are_ended_after_the_timeout(tmp_path):
    program = 'import sys; print("up", flush=True); ' + SLEEP
    with Cluster(1) as cluster, (tmp_path / 'out').open('w') as file:
        command = ['-c', program, str(tmp_path / 'pid')]
        assert cluster.run(command, 'horovodrun', timeout=2, stdout=file) == 124
        assert keeper.inhabitants(cluster.names) == []
    assert (tmp_path / 'out').read_text() == 'up\n'
