"""Starting train.py in every way there is, in this process and in others, and reading what it left.

Nothing here imports what is under test at the top, so that it can be imported anywhere.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import warm
import worlds
from event_files import events

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
BIN = Path(PYTHON).parent
DGC = [f'configs/dgc/{name}.py' for name in ('wm5', 'fp16', 'int32')]
DIGITS = ['--configs', 'configs/digits/cnn.py', *DGC, '--devices', 'cpu']
EPOCHS, BATCH = 3, 64  # of the runs that many tests look at: few steps, since some engines are slow
OPTIONS = {
    'OMPI_MCA_mpi_yield_when_idle': '1',  # ranks may well outnumber the cores here
    'OMPI_MCA_rmaps_base_oversubscribe': '1',
    'CUDA_VISIBLE_DEVICES': '',
}
PREFIX = re.compile(r'^(\[\d+(,\d+)?\]<std(out|err)>:)+')  # of horovodrun, before each line

LAUNCHERS = {
    'horovodrun --gloo': ['horovodrun', '--gloo', '-np', '2', PYTHON],
    'horovodrun --mpi': ['horovodrun', '--mpi', '-np', '2', PYTHON],
    'mpirun': [
        *('mpirun', '-np', '2', '--oversubscribe', '--bind-to', 'none'),
        *('-mca', 'mpi_yield_when_idle', '1', PYTHON),
    ],
    'torchrun': ['torchrun', '--standalone', '--nproc-per-node', '2'],
    'simulated': [PYTHON],
    'python': [PYTHON],
}
SIMULATED = ['--configs.engine.name', 'simulated', '--configs.engine.size']


@dataclass(frozen=True)
class Done:
    """A command that has ended. lines: of stdout and stderr, without what launchers put before."""

    code: int
    output: str
    seconds: float = 0.0

    @property
    def lines(self) -> list[str]:
        return [PREFIX.sub('', line) for line in re.split(r'[\r\n]+', self.output)]

    @property
    def complaints(self) -> list[str]:
        """What train.py itself says is wrong."""
        return [line for line in self.lines if line.startswith('train.py:')]


def environment(**more: str) -> dict[str, str]:
    """That of worlds without the path of the tests, and without a GPU."""
    ours = worlds.environment(**OPTIONS) | more
    return {name: value for name, value in ours.items() if name != 'PYTHONPATH'}


def start(words: Sequence[str | Path], cold: bool = False, **options: Any) -> subprocess.Popen:
    """Start a command in the repository's root, with the options of ``Popen``.

    Args:
        cold: Start Python anew, as users do, rather than from one that has imported torch.
    """
    plain = list(map(str, words))
    return subprocess.Popen(
        plain if cold else warm.warmed(plain),
        cwd=ROOT,
        env=environment() if cold else environment(**warm.environment()),
        stdin=subprocess.DEVNULL,
        **options,
    )


def command(words: Sequence[str | Path], timeout: float = 240, cold: bool = False) -> Done:
    """Run a command in the repository's root; ended, and failed, where it takes too long."""
    began = time.monotonic()
    process = start(
        words,
        cold,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # launchers end their workers themselves when they are asked to
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        output, _ = process.communicate()
        raise AssertionError(f'{words} has not ended after {timeout} s:\n{output}') from None
    return Done(process.returncode, output, time.monotonic() - began)


def launch(launcher: str, arguments: Sequence[str | Path], cold: bool = False) -> Done:
    """train.py under one of LAUNCHERS."""
    more = [*SIMULATED, '2'] if launcher == 'simulated' else []
    return command([*LAUNCHERS[launcher], 'train.py', *arguments, *more], cold=cold)


def here(*arguments: str | Path) -> Done:
    """train.py in this process: the same code but for the launcher and the imports."""
    import train
    from utils.cli import parse_arguments

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), settings_kept():
        torch.set_num_threads(1)
        try:
            code = train.main(*parse_arguments(list(map(str, arguments))))
        except SystemExit as error:
            code = int(error.code or 0)
    return Done(code, output.getvalue())


def in_world(engine: Any, *arguments: str | Path) -> Done:
    """train.py as a case of a world (worlds.py), whose ranks and default group it uses."""
    from utils import cli

    cli.PATIENCE = 0.0  # no launcher ends the other ranks after a failure
    return here(*arguments)


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Put back what train.py sets for the whole process: threads, and where warnings go."""
    threads, root = torch.get_num_threads(), logging.root
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path
    done: Done = field(default=Done(0, ''), compare=False)

    @property
    def metrics(self) -> list[dict[str, float]]:
        lines = (self.folder / 'metrics.jsonl').read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def results(self) -> list[dict[str, float]]:
        """The metrics without seconds, which differ from run to run."""
        from utils.lines import untimed

        return [untimed(line) for line in self.metrics]

    @property
    def environment(self) -> dict[str, str]:
        lines = (self.folder / 'environment.txt').read_text().splitlines()
        return dict(line.split(': ', 1) for line in lines)

    @property
    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.folder / 'checkpoints').iterdir())

    def curve(self, tag: str) -> dict[int, float]:
        """Samples seen to value, over all event files, what was purged left out."""
        points: dict[int, float] = {}
        for file in sorted(self.folder.glob('events.*')):
            for event in events(file):
                if event.HasField('session_log'):  # a resumed run begins here again
                    points = {step: v for step, v in points.items() if step < event.step}
                for value in event.summary.value:
                    if value.tag == tag:
                        assert event.step not in points, f'{tag} has step {event.step} twice'
                        points[event.step] = value.simple_value
        return points

    def checkpoint(self, epoch: int, rank: int, size: int = 2) -> dict[str, Any]:
        path = self.folder / f'checkpoints/e{epoch:04d}.r{rank}of{size}.pth'
        state = torch.load(path, weights_only=True)
        state.pop('manifest', None)  # of which run it is
        return state


def only_run(runs: Path, done: Done) -> Run:
    """The one folder that a command left under ``runs``."""
    folders = list(runs.iterdir()) if runs.is_dir() else []
    assert done.code == 0 and len(folders) == 1, f'{done.code} {folders}\n{done.output}'
    return Run(folders[0], done)


def assert_same(one: Any, other: Any, where: str = '') -> None:
    """Nested dicts and lists with the same keys, numbers and bits."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f'{where}.{key}')
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            assert_same(mine, theirs, f'{where}[{index}]')
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where
