"""Install the wheel into an empty environment and run the README there.

``python -m tools.wheel``, or ``make check-wheel``. It downloads torch, so it is not part of the
tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.harness.cli import Parser, log, report
from tools.snippets.commands import command_lines
from tools.wheel.build import ROOT, build_wheel

PROGRAM = 'tools.wheel'
DIST = ROOT / 'dist'
PLACE = ROOT / 'build/check-wheel'
APPLICATION = ('train.py', 'configs', 'datasets', 'models', 'utils')  # all but the package
VERSIONS = """
import dgc, torch
from dgc import ops
assert ops.is_native(torch.device('cpu')), 'the kernels do not compile here'
print('dgc', dgc.__version__, 'from', dgc.__file__, 'kernels compiled, torch', torch.__version__)
"""


class StepError(Exception):
    """A command failed."""


def run(what: str, command: Sequence[str], environment: dict[str, str]) -> None:
    """Run a command in the folder of the application.

    Raises:
        StepError: It failed.
    """
    log(f'{what}: {" ".join(command)}')
    done = subprocess.run(command, cwd=PLACE / 'app', env=environment, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise StepError(f'{what} failed with exit code {done.returncode}')


def prepare() -> None:
    """Make an empty environment, and a copy of the application without the package beside it."""
    shutil.rmtree(PLACE, ignore_errors=True)
    (PLACE / 'app').mkdir(parents=True)
    for name in APPLICATION:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, PLACE / 'app' / name)
    subprocess.run([sys.executable, '-m', 'venv', str(PLACE / 'venv')], check=True)


def check(wheel: Path) -> None:
    """Install the wheel, run the README's Python snippets, then its command lines with the extras.

    Raises:
        StepError: Something failed.
    """
    folder = PLACE / 'venv/bin'
    python, torchrun = str(folder / 'python'), str(folder / 'torchrun')
    readme, script = str(ROOT / 'README.md'), str(ROOT / 'tools/snippets/run.py')
    plain = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
    plain |= {'PATH': f'{folder}{os.pathsep}{os.environ["PATH"]}', 'OMP_NUM_THREADS': '1'}
    fresh = plain | {'XDG_CACHE_HOME': str(PLACE / 'cache')}  # so that the kernels compile
    install = [python, '-m', 'pip', 'install', '-q']
    run('torch and NumPy only', [*install, str(wheel)], plain)
    run('kernels', [python, '-c', VERSIONS], fresh)
    run('snippets', [python, script, readme], fresh)
    two = [torchrun, '--standalone', '--nproc-per-node', '2']
    run('snippets, two ranks', [*two, script, readme], fresh)
    run('extras', [*install, f'{wheel}[train,server,plot,horovod]'], plain)
    run('Horovod', [str(ROOT / 'tools/install_horovod.sh'), python], plain)
    for line in command_lines(ROOT / 'README.md'):
        run('command line', ['bash', '-c', f'{line} --devices cpu'], fresh)


def main(argv: Sequence[str]) -> int:
    """Build the wheel and check it; return the exit code."""
    parser = Parser(
        PROGRAM,
        'Build the wheel into dist/, install it into an empty environment in build/check-wheel, '
        'and run there each Python snippet and each train.py command line of the README.',
    )
    parser.add_argument('--build', action='store_true', help='only build the wheel')
    arguments = parser.parse_args(argv)
    wheel = build_wheel(DIST)
    if not arguments.build:
        prepare()
        try:
            check(wheel)
        except StepError as error:
            report(PROGRAM, str(error))
            return 1
        shutil.rmtree(PLACE / 'venv')  # gigabytes
    print(f'{wheel.relative_to(ROOT)}: {"built" if arguments.build else "works"}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
