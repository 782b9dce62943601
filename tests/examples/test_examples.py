"""Every example, started by the command of examples/README.md with fewer steps."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from worlds import ROOT, environment

EXAMPLES = ROOT / 'examples'
WORKER = Path(__file__).with_name('example_worker.py')
FEWER = {
    'loop.py': '--epochs 4',
    'ddp.py': '--steps 30',
    'with_lightning.py': '--epochs 3',
    'with_accelerate.py': '--epochs 3',
    'with_trainer.py': '--steps 40',
    'with_horovod.py': '--epochs 3',
    'asynchronous.py': '--updates 200',
    'own_compressor.py': '--steps 100',
}
NEEDED = {
    'with_lightning.py': ['lightning'],
    'with_accelerate.py': ['accelerate'],
    'with_trainer.py': ['accelerate', 'transformers'],
}
SLOW = ('lightning', 'lightning.pytorch.strategies', 'transformers.trainer', 'accelerate')
README = (EXAMPLES / 'README.md').read_text()
COMMANDS = {
    re.search(r'examples/(\S+)', command)[1]: command
    for command in re.findall(r'`((?:torchrun|horovodrun) [^`]+)`', README)
}


def without_package(name: str) -> str:
    """Why an example cannot run here; '' where it can."""
    missing = [each for each in NEEDED.get(name, ()) if importlib.util.find_spec(each) is None]
    return f'not installed: {", ".join(missing)}' if missing else ''


@pytest.fixture(scope='module')
def package(tmp_path_factory) -> Path:
    """A folder with the package alone, as ``pip install`` makes it: other folders of the project
    have names of packages that the examples use (datasets)."""
    folder = tmp_path_factory.mktemp('installed')
    (folder / 'dgc').symlink_to(ROOT / 'dgc')
    return folder


def run(command: str, package: Path, libraries: tuple[str, ...] = ()) -> str:
    """What a command of the table prints, which must succeed. The ranks' digests are in it.

    Args:
        command: as a user writes it.
        package: where the ranks find ``dgc``.
        libraries: those that the fork server imports once for all examples.
    """
    words = command.split()
    words[1:1] = ['--standalone'] if words[0] == 'torchrun' else ['--gloo']
    place = next(place for place, word in enumerate(words) if word.startswith('examples/'))
    words[place:place] = [str(WORKER)]
    words = [re.sub('^python$', sys.executable, word) for word in words]
    done = subprocess.run(
        warm.warmed(words),
        cwd=ROOT,
        env=environment(PYTHONPATH=str(package)) | warm.environment(*libraries),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert 'DGCSGD leaves its momentum' not in done.stderr  # so the memory applies it
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r'\bloss\W+(\d+\.\d+)', output)]


def sent(output: str) -> list[tuple[int, int]]:
    """The bytes that each rank sent, and those of dense training."""
    return [(int(few), int(many)) for few, many in re.findall(r'sent (\d+) of (\d+)', output)]


def digests(output: str) -> list[str]:
    return re.findall(r'parameters ([0-9a-f]{64})', output)


def test_the_table_has_every_example():
    assert {path.name for path in EXAMPLES.glob('*.py')} == {*COMMANDS} == {*FEWER}


@pytest.mark.parametrize('path', sorted(EXAMPLES.glob('*.py')), ids=lambda path: path.name)
def test_an_example_is_short(path):
    assert len(path.read_text().splitlines()) < 100


def marks(name: str) -> list:
    reason = without_package(name)
    needs = [pytest.mark.horovod] if name == 'with_horovod.py' else []
    return [pytest.mark.skipif(bool(reason), reason=reason), *needs]


@pytest.mark.parametrize(
    'name', [pytest.param(name, marks=marks(name)) for name in FEWER if name != 'loop.py']
)
def test_the_loss_falls_and_the_ranks_end_with_the_same_parameters(name, package):
    slow = SLOW if name in NEEDED and not any(map(without_package, NEEDED)) else ()
    output = run(f'{COMMANDS[name]} {FEWER[name]}', package, slow)
    first, *_, last = losses(output)
    assert last < 0.8 * first
    ends = digests(output)
    if name == 'asynchronous.py':  # each worker lacks what the server has not sent it yet
        assert len(ends) == 3
        assert sorted(few > 0 for few, _ in sent(output)) == [False, True, True]
    else:
        assert len(ends) == 2 and ends[0] == ends[1]
        for few, many in sent(output):
            assert 0 < few < many / 2


def test_the_loop_continues_from_its_checkpoint_with_another_number_of_ranks(package, tmp_path):
    command = f'{COMMANDS["loop.py"]} --checkpoint {tmp_path / "digits.pt"}'
    before = run(f'{command} --epochs 2', package)
    after = run(f'{command} {FEWER["loop.py"]}'.replace('-node 2', '-node 3'), package)
    assert re.findall(r'epoch (\d)', before) == ['0', '1']
    assert re.findall(r'epoch (\d)', after) == ['2', '3']
    assert losses(after)[0] < 0.8 * losses(before)[0]
    for output, size in (before, 2), (after, 3):
        assert len(digests(output)) == size and len({*digests(output)}) == 1
