"""Asynchronous training by a launcher and by hand, with faults and with errors."""

from __future__ import annotations

import csv
import signal
import socket
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from launching import BIN, Run, command, here, only_run, start

STACK = ['--configs', 'configs/digits/cnn.py', 'configs/dgs/dgs.py', '--devices', 'cpu']
# The default is trained to its end, the others as far as tells a method that learns from one that
# does not. Accuracies in percent.
MODES = [
    ('dgs/dgs', 25, 97),
    ('dgs/asgd', 10, 85),
    ('dgs/gradient_dropping', 10, 85),
    ('dgs/async_dgc', 10, 85),
    ('diloco/asynchronous', 8, 85),
]
QUICK = [
    '--configs.server.heartbeat=0.3',
    '--configs.server.timeout=2',
    '--configs.server.patience=60',
]


def train(*words: str | Path) -> list[str]:
    return [sys.executable, 'train.py', *STACK, *map(str, words)]


def server(*words: str | Path) -> list[str]:
    return [sys.executable, 'train.py', *STACK, *map(str, words)]


@pytest.fixture
def address() -> str:
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return f'127.0.0.1:{one.getsockname()[1]}'


@contextmanager
def started(words: list[str], log: Path):
    """A process that is killed, where it still runs, when the block ends."""
    with log.open('ab') as file:
        process = start(words, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, 'it takes too long'
        time.sleep(0.1)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []


def run_folder(runs: Path) -> Path:
    (folder,) = [path for path in runs.iterdir() if '~' not in path.name]
    return folder


@pytest.fixture(scope='module')
def launched(tmp_path_factory) -> Run:
    """Three epochs with two workers under torchrun, which starts three processes."""
    runs = tmp_path_factory.mktemp('launched') / 'runs'
    words = [BIN / 'torchrun', '--standalone', '--nproc-per-node', '3', *train()[1:]]
    done = command([*words, '--configs.train.num_epochs=3', '--runs', runs])
    return only_run(runs, done)


def test_a_launcher_starts_one_process_more_than_workers(launched):
    assert launched.folder.name == 'digits.cnn+dgs.dgs@num_epochs=3.np2'
    assert launched.environment['workers'] == '2'
    assert [line['epoch'] for line in launched.metrics] == [0, 1, 2]
    assert launched.metrics[-1]['updates'] == 3 * 2 * 44
    assert launched.metrics[-1]['acc/test_top1'] > 40  # where guessing gives 10
    assert 'bytes down' in launched.done.output


def test_each_update_is_on_record_with_its_staleness_and_bytes(launched):
    with (launched.folder / 'updates.csv').open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row['update']) for row in rows] == list(range(1, 3 * 2 * 44 + 1))
    assert {row['place'] for row in rows} == {'0', '1'}
    assert all(int(row['staleness']) >= 0 for row in rows)
    for name in ('received', 'sent'):
        of_rows = sum(int(row[name]) for row in rows)
        assert of_rows == sum(line[f'bytes/{name}'] for line in launched.metrics)
        assert of_rows < launched.metrics[0]['bytes/dense'] * 3 / 2 / 20


def test_there_are_curves_against_updates_epochs_and_seconds(launched):
    by_update = launched.curve('acc/test_top1')
    assert list(by_update) == [88, 176, 264]
    assert list(launched.curve('by_milliepoch/acc/test_top1')) == [1000, 2000, 3000]
    assert len(launched.curve('bytes/sent')) == len(launched.curve('staleness/mean')) == 13
    assert launched.curve('bytes/received') and launched.curve('loss/train')


def test_the_servers_checkpoint_is_evaluated_in_one_process(launched):
    done = here(*STACK, '--evaluate', '--resume', launched.folder)
    best = max(line['acc/test_top1'] for line in launched.metrics)
    assert done.code == 0, done.output
    assert f'[acc/test_top1] = {best:.2f}' in done.output
    done = here(*STACK, '--evaluate', 'epochs', '--resume', launched.folder)
    assert done.code == 0, done.output
    assert all(f'{line["acc/test_top1"]:.2f}' in done.output for line in launched.metrics)


@pytest.mark.slow
@pytest.mark.xdist_group('torchrun 5')
@pytest.mark.parametrize(('mode', 'epochs', 'accuracy'), MODES)
def test_four_workers_learn(worlds, mode, epochs, accuracy, tmp_path):
    """The runs follow each other in the same five processes, one of which serves."""
    words = ['--configs', 'configs/digits/cnn.py', f'configs/{mode}.py', '--devices', 'cpu']
    words += [f'--configs.train.num_epochs={epochs}', '--runs', str(tmp_path / 'runs')]
    ends = worlds('torchrun', 5).run('launching:in_world', *words, seconds=280)
    assert [done.code for done in ends] == [0] * 5, [done.output for done in ends]
    run = only_run(tmp_path / 'runs', ends[0])
    assert max(line['acc/test_top1'] for line in run.metrics) >= accuracy


@pytest.mark.slow
def test_killed_workers_and_servers_are_replaced(tmp_path):
    """The short form of `python -m bench.chaos`."""
    words = ['-m', 'bench.chaos', '--workers', '2', '--kill-workers', '2', '--kill-server', '1']
    done = command([sys.executable, *words, '--epochs', '12'], timeout=280)
    assert done.code == 0, done.output
    assert 'server killed             1' in done.output


def test_by_hand_a_stopped_server_resumes_and_no_update_is_lost(address, tmp_path):
    """After SIGTERM the server saves and ends with 0, and the workers wait; after --resume all end
    with 0, and no update is missing."""
    epochs = 5
    settings = [f'--configs.train.num_epochs={epochs}', *QUICK]
    serve = [*server('--serve', address, *settings), '--configs.server.workers=2']
    serve += ['--runs', str(tmp_path / 'runs')]
    work = train(f'--configs.server.address={address}', *settings)
    log = tmp_path / 'log'
    with started(serve, log) as first, started(work, log) as one, started(work, log) as other:
        until(lambda: log.is_file() and 'worker 1 begins' in log.read_text())
        folder = run_folder(tmp_path / 'runs')
        until(lambda: lines(folder / 'metrics.jsonl'))
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
        saved = len(lines(folder / 'updates.csv')) - 1
        assert 0 < saved < epochs * 88
        with started([*serve, '--resume'], log) as second:
            assert [process.wait(200) for process in (second, one, other)] == [0, 0, 0]
    assert f'from update {saved}\n' in log.read_text()
    updates = [line.partition(',')[0] for line in lines(folder / 'updates.csv')[1:]]
    assert updates == [str(update) for update in range(1, epochs * 88 + 1)]
    assert lines(folder / 'metrics.jsonl')


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGUSR1])
def test_a_terminated_worker_frees_its_slot_at_once(address, tmp_path, number):
    log = tmp_path / 'log'
    serve = server('--serve', address, '--configs.server.workers=1', '--runs', tmp_path / 'runs')
    work = train(f'--configs.server.address={address}')
    with started(serve, log), started(work, log) as worker:
        until(lambda: log.is_file() and 'worker 0 begins' in log.read_text())
        until(lambda: lines(run_folder(tmp_path / 'runs') / 'metrics.jsonl'))
        worker.send_signal(number)
        assert worker.wait(60) == 143
        until(lambda: 'worker 0 has left' in log.read_text(), 10)


def test_a_worker_with_another_configuration_is_refused_in_one_line(address, tmp_path):
    log = tmp_path / 'log'
    serve = server('--serve', address, '--configs.server.workers=1', '--runs', tmp_path / 'runs')
    with started(serve, log):
        until(lambda: log.is_file() and 'serving at' in log.read_text())
        done = here(*STACK, f'--configs.server.address={address}', '--configs.train.batch_size=8')
        assert done.code == 2
        (told,) = done.complaints
        assert 'differ in the configuration' in told
        until(lambda: 'differ in the configuration' in log.read_text(), 10)


REFUSED = {
    'neither an address nor a launcher': ([], 'configs.server.address must be set'),
    'a bad address': (['--configs.server.address=here'], "'here' is no host:port"),
    'no number of workers': (['--configs.server.bind=127.0.0.1:0'], 'configs.server.workers must'),
    'no key beyond loopback': (
        ['--configs.server.bind=0.0.0.0:0', '--configs.server.workers=2'],
        'configs.server.key is not set',
    ),
    'a missing key file': (
        ['--configs.server.address=10.9.9.9:5', '--configs.server.key=/nowhere/key'],
        "configs.server.key = '/nowhere/key' cannot be read",
    ),
    'simulated': (
        ['--configs.engine.name=simulated', '--configs.engine.size=2'],
        'asynchronous training needs a launcher',
    ),
    'no momentum': (
        [
            '--configs.server.bind=127.0.0.1:0',
            '--configs.server.workers=2',
            '--configs.train.optimizer.momentum=0.0',
        ],
        "set the optimizer's momentum above 0",
    ),
    'nothing to go on from': (
        [
            '--configs.server.bind=127.0.0.1:0',
            '--configs.server.workers=2',
            '--resume',
            '/nowhere',
        ],
        '--resume RUN names the run of a server',
    ),
    'nobody there': (
        ['--configs.server.address=127.0.0.1:9', '--configs.server.patience=0.5'],
        'no parameter server at 127.0.0.1:9',
    ),
    'a short timeout': (
        ['--configs.server.address=127.0.0.1:9', '--configs.server.timeout=1.0'],
        'configs.server.timeout = 1.0 leaves no time',
    ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_bad_input_is_one_line_and_code_2(name):
    words, remedy = REFUSED[name]
    done = here(*STACK, *words)
    assert done.code == 2, done.output
    (told,) = done.complaints
    assert remedy in told


def test_a_server_for_synchronous_training_is_refused():
    done = here('--configs', 'configs/digits/cnn.py', '--configs.server.bind=127.0.0.1:0')
    assert done.code == 2
    assert 'add a file of configs/dgs/' in done.complaints[0]


@pytest.mark.parametrize(
    ('words', 'code', 'told'),
    [
        (['--help'], 0, 'usage:'),
        ([], 2, 'usage:'),
        (
            ['--configs', 'configs/digits/cnn.py', '--bind', 'a:1'],
            2,
            'train.py --configs … --serve HOST',
        ),
        (['--new-key'], 2, 'needs the name of a file'),
    ],
)
def test_the_command_line_that_makes_keys(words, code, told):
    done = command([sys.executable, '-m', 'dgc.parameter_server', *words])
    assert done.code == code and told in done.output


def test_a_key_file_is_made_once(tmp_path):
    words = [sys.executable, '-m', 'dgc.parameter_server', '--new-key', tmp_path / 'key']
    assert command(words).code == 0
    assert (tmp_path / 'key').stat().st_mode & 0o777 == 0o600
    again = command(words)
    assert again.code == 2 and 'cannot be made' in again.output
