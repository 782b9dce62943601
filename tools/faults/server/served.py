"""A server of asynchronous training in a process of its own, within limits, and its workers."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dgc.parameter_server import Address, Asynchronous, WorkerOptimizer
from dgc.parameter_server.model import FloatBuffers, agreement_digests
from dgc.parameter_server.protocol import FROM_SERVER, Kind, Message, decode, max_message_bytes
from dgc.parameter_server.sockets import SocketLink
from tools.faults.server.attacks import Target
from tools.faults.server.peer import Peer
from tools.harness.launch import ROOT, environment
from utils.build import build_optimizer, common
from utils.checks import build_composition
from utils.cli import DECLARATIONS, OPTIONS
from utils.config import Config, load
from utils.data import build_datasets
from utils.seeding import seed_everything

FILES, MEMORY = 1024, 2_000_000_000  # limits of the server: open files, bytes of data
WORKERS = 2  # that train honestly
START = 240.0  # seconds for a server to start on a busy machine
# Messages of 2.4 MB: the digits with a wide layer.
MODEL = """\
from models.digits import DigitsCNN
from utils.config import Config, configs

configs.model = Config(DigitsCNN, channels=64, hidden=1024)
"""
SETTINGS = [
    '--configs.train.num_epochs=1000000',
    '--configs.server.heartbeat=0.5',
    '--configs.server.timeout=10.0',
    '--configs.server.patience=600.0',
    '--configs.server.checkpoint_seconds=1.0',
]


class Setup:
    """The files and the command line that a server and its workers share.

    Args:
        folder: Of the run.
        is_wide: Whether the model has long messages.
    """

    def __init__(self, folder: Path, is_wide: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.stack = [str(ROOT / 'configs/digits/cnn.py'), str(ROOT / 'configs/dgs/dgs.py')]
        if is_wide:
            path = folder / 'wide.py'
            path.write_text(MODEL)
            self.stack.insert(1, str(path))
        self.address = Address('127.0.0.1', free_port())
        self.configs: Config = load(self.stack, SETTINGS, OPTIONS, DECLARATIONS)
        self.common = common(self.configs, build_datasets(self.configs))

    @property
    def checkpoints(self) -> Path:
        """The folder of the server's checkpoints."""
        (folder,) = (self.folder / 'runs').glob('*/checkpoints')
        return folder

    def serve(self, slots: int) -> subprocess.Popen[bytes]:
        """Start the server, within its limits; again, where there are checkpoints."""
        words = ['--serve', str(self.address), f'--configs.server.workers={slots}']
        words += ['--resume', 'auto', '--runs', str(self.folder / 'runs')]
        limits = f'ulimit -n {FILES}; ulimit -d {MEMORY // 1024}; exec "$@"'
        return self._start(['sh', '-c', limits, 'sh', sys.executable, 'train.py', *words])

    def work(self) -> subprocess.Popen[bytes]:
        """Start a worker."""
        address = f'--configs.server.address={self.address}'
        return self._start([sys.executable, 'train.py', address])

    def _start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        words = [*words, '--configs', *self.stack, '--devices', 'cpu', *SETTINGS]
        with (self.folder / 'output.txt').open('ab') as file:
            return subprocess.Popen(
                words,
                cwd=ROOT,
                env=os.environ | environment() | {'CUDA_VISIBLE_DEVICES': ''},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def optimizer(self, link: SocketLink) -> WorkerOptimizer:
        """A worker of the server."""
        seed_everything(self.configs.seed)
        model = self.configs.model.build()
        return WorkerOptimizer(
            build_optimizer(self.configs, model, workers=1),
            model.named_parameters(),
            model.buffers(),
            build_composition(self.configs, Asynchronous),
            link,
            self.common,
        )

    def target(self, seconds: float, draw: random.Random) -> Target:
        """What an attack has to know."""
        model = self.configs.model.build()
        named, buffers = list(model.named_parameters()), FloatBuffers(model.buffers()).numel
        digests = agreement_digests(named, buffers, self.common)
        numels = [sum(parameter.numel() for _, parameter in named)]
        longest = max_message_bytes(numels, buffers, len(digests))
        deadline = time.monotonic() + seconds
        return Target(self.address, b''.join(digests.values()), longest, deadline, draw)

    def version(self) -> int | None:
        """The number of updates that the server has made; None where it does not answer."""
        try:
            peer = Peer(self.address)
        except (OSError, StopIteration):
            return None
        try:
            peer.send(Message(Kind.HELLO, secrets.randbits(62) + 1, 1).encode())
            return decode(peer.receive(), FROM_SERVER).version
        except (OSError, ValueError, StopIteration):
            return None
        finally:
            peer.close()

    def wait_for_version(self, least: int, process: subprocess.Popen[bytes]) -> int | None:
        """Wait until the server has made ``least`` updates.

        Returns:
            How many it has made; None where it ends, or it takes long.
        """
        deadline = time.monotonic() + START
        while process.poll() is None and time.monotonic() < deadline:
            version = self.version()
            if version is not None and version >= least:
                return version
            time.sleep(0.1)
        return None


def free_port() -> int:
    """A free TCP port of this machine."""
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return int(listener.getsockname()[1])


@contextmanager
def ended(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """End processes with the block."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
