"""A disk that is full: one line, exit code 3, all ranks end, and what was written before is whole.

docs/failures.md, row 13.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from launching import BATCH, BIN, DIGITS, PYTHON, ROOT, SIMULATED, Run, command, here, start

from dgc.parameter_server import Address
from dgc.parameter_server.protocol import FROM_SERVER, Kind, Message, decode
from tools.faults.server.peer import Peer
from utils import sealed

FULL = 'cannot be written (No space left on device): make room there'
WORDS = [*DIGITS, '--configs.train.batch_size', str(BATCH)]


@pytest.fixture
def small(tmp_path) -> Iterator[Path]:
    """A disk of 2 MB."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    words = ['mount', '-t', 'tmpfs', '-o', 'size=2m', 'none', folder]
    if os.getuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip('a small file system can be mounted by root alone')
    yield folder
    subprocess.run(['umount', '--lazy', folder], check=True)


def fill(folder: Path) -> None:
    """Leave no room on the disk of ``folder``."""
    with (folder / 'filler').open('wb', buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def until(condition, seconds: float = 180.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, 'it takes too long'
        time.sleep(0.1)


def check_whole(run: Run, epochs: int, size: int) -> None:
    """Lines of metrics and checkpoints up to ``epochs`` are there, and nothing that is half."""
    assert [line['epoch'] for line in run.metrics][:epochs] == list(range(epochs))
    assert not list(run.folder.rglob('*.partial*'))
    for epoch in range(max(epochs - 2, 0), epochs):
        for rank in range(size):
            assert run.checkpoint(epoch, rank, size)['epoch'] == epoch


@pytest.mark.parametrize('size', [1, 2])
def test_a_disk_that_fills_up_with_checkpoints_ends_all_in_one_line(small, size):
    words = [*WORDS, '--runs', small, '--configs.train.num_epochs=9']
    words += [*SIMULATED, str(size)] if size > 1 else []
    done = here(*words)
    assert done.code == 3, done.output
    (line,) = done.complaints
    assert FULL in line and str(small) in line and '--resume' in line
    assert 'Traceback' not in done.output and 'unexpected pos' not in done.output
    (folder,) = small.iterdir()
    trained = sum(line.startswith('epoch ') for line in done.lines)
    assert 0 < trained < 9
    check_whole(Run(folder), trained - 1, size)
    subprocess.run(['mount', '-o', 'remount,size=64m', small], check=True)
    words[words.index('--configs.train.num_epochs=9')] = f'--configs.train.num_epochs={trained + 1}'
    again = here(*words, '--resume')
    assert again.code == 0, again.output
    check_whole(Run(folder), trained + 1, size)


def test_a_disk_that_is_full_at_the_start_is_refused(small):
    fill(small)
    done = here(*WORDS, '--runs', small)
    assert done.code == 2, done.output
    (line,) = done.complaints
    assert 'cannot be written (No space left on device): give --runs a folder that can be' in line


def test_a_disk_that_fills_up_under_the_curves_does_not_hang(small):
    """In a process of its own: the thread of tensorboardX ended, and training waited for it."""
    arguments = ['train.py', *DIGITS, '--configs.train.num_epochs', '300', '--runs', str(small)]
    pipe = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
    process = start([PYTHON, *arguments], **pipe)
    try:
        before = next(line for line in process.stdout if line.startswith('epoch 1:'))
        fill(small)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 3, before + rest
    (line,) = [line for line in rest.splitlines() if line.startswith('train.py:')]
    assert FULL in line and 'Traceback' not in rest
    (folder,) = (path for path in small.iterdir() if path.is_dir())
    check_whole(Run(folder), 1, 1)


@pytest.mark.slow
def test_all_ranks_of_a_launcher_end(trained, tmp_path):
    """With a largest size of files, so that it needs no root."""
    folder = tmp_path / 'runs' / trained('torchrun').folder.name
    shutil.copytree(trained('torchrun').folder, folder)
    largest = max(path.stat().st_size for path in folder.glob('*.*')) // 1024 + 8
    words = [BIN / 'torchrun', '--standalone', '--nproc-per-node', '2', 'train.py', *WORDS]
    words += ['--suffix', '.x', '--runs', tmp_path / 'runs', '--resume']
    line = ' '.join(warm.warmed(list(map(str, [*words, '--configs.train.num_epochs=9']))))
    done = command(['bash', '-c', f'ulimit -f {largest}; exec {line}'])
    assert done.code != 0
    (complaint,) = done.complaints
    assert 'cannot be written (File too large): make room there' in complaint
    assert 'exitcode  : 3' in done.output and 'unexpected pos' not in done.output
    check_whole(Run(folder), 3, 2)
    assert (
        str(tmp_path)
        not in subprocess.run(
            ['ps', '-eo', 'args'], capture_output=True, text=True, check=True
        ).stdout
    )


@pytest.mark.parametrize(('code', 'expected'), [(0, 3), (2, 2)])
def test_output_that_cannot_be_written_ends_with_a_code_and_no_traceback(code, expected):
    words = [sys.executable, '-c', f'from utils.cli import end; print("x"); end({code})']
    variables = {name: v for name, v in os.environ.items() if name != 'PYTHONUNBUFFERED'}
    with open('/dev/full', 'w') as full:
        done = subprocess.run(
            words, cwd=ROOT, env=variables, stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (expected, '')


def version(address: Address) -> int:
    """The number of updates that a server has made."""
    peer = Peer(address)
    try:
        peer.send(Message(Kind.HELLO, 1, 1).encode())
        return decode(peer.receive(), FROM_SERVER).version
    finally:
        peer.close()


def last_checkpoint(runs: Path) -> int:
    """The updates in the last checkpoint of a server, which is whole."""
    path = max(runs.glob('*/checkpoints/server.u*.pth'))
    return int(sealed.read(path)['version'])


@pytest.mark.slow
def test_a_server_whose_disk_is_full_trains_on_and_says_so_once(small, tmp_path):
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        address = Address(*one.getsockname())
    log = tmp_path / 'log'
    words = ['--configs', 'configs/digits/cnn.py', 'configs/dgs/dgs.py', '--devices', 'cpu']
    words += ['--configs.train.num_epochs=1000', '--configs.server.heartbeat=0.5']
    serve = ['--serve', str(address), '--configs.server.workers=1', '--runs', str(small)]
    serve += ['--configs.server.checkpoint_seconds=0.5']
    work = [f'--configs.server.address={address}']
    with log.open('ab') as file:
        processes = [
            start([sys.executable, 'train.py', *words, *each], stdout=file, stderr=file)
            for each in (serve, work)
        ]
    try:
        until(lambda: 'epoch 0:' in log.read_text())
        fill(small)
        until(lambda: 'training goes on without checkpoints' in log.read_text())
        first = version(address)
        until(lambda: version(address) > first + 100)  # two epochs and more
        saved = last_checkpoint(small)
        subprocess.run(['mount', '-o', 'remount,size=64m', small], check=True)
        until(lambda: 'checkpoints go on' in log.read_text())
        processes[0].send_signal(signal.SIGTERM)
        assert processes[0].wait(60) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert last_checkpoint(small) > first + 100 > saved
    told = log.read_text()
    assert told.count('training goes on without checkpoints') == 1 and 'Traceback' not in told
    (folder,) = small.glob('*.np1')
    metrics = Run(folder).metrics
    made = last_checkpoint(small) // metrics[0]['updates']
    assert [line['epoch'] for line in metrics] == list(range(made)) and made > 1
