"""What the wheel holds, and that it works from an empty folder, as a reader would install it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import dgc
from tools.wheel.build import ROOT, build_wheel

# A step on one rank, with what was compiled for these sources.
PROGRAM = """
import sys
import torch
import dgc
from dgc import ops
model = torch.nn.Linear(300, 200)
engine = dgc.create()
optimizer = dgc.DistributedOptimizer(
    dgc.DGCSGD(model.parameters(), lr=0.1), model.named_parameters(),
    dgc.deep_gradient_compression(0.01), engine)
before = model.weight.detach().clone()
model(torch.ones(1, 300)).sum().backward()
optimizer.step()
print(dgc.__file__)
print(ops.is_native(torch.device('cpu')))
print(int((model.weight != before).sum()))
print(sorted({'zmq', 'horovod', 'torchvision', 'matplotlib'} & set(sys.modules)))
"""


@pytest.fixture(scope='module')
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp('dist'), '--no-build-isolation', '--no-index')


def test_it_holds_the_package_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if '.dist-info/' not in name}
    package = ROOT / 'dgc'
    files = {path for path in package.rglob('*') if path.suffix in ('.py', '.cpp', '.h', '.typed')}
    assert held == {str(path.relative_to(ROOT)) for path in files}
    assert {'dgc/py.typed', 'dgc/ops/csrc/kernels.cpp'} <= held


def test_its_metadata_has_the_version_and_what_each_extra_needs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith('/METADATA'))
        lines = archive.read(name).decode().split('\n\n')[0].splitlines()
    assert f'Version: {dgc.__version__}' in lines
    extras = {line.split()[1] for line in lines if line.startswith('Provides-Extra')}
    assert extras == {'horovod', 'plot', 'server', 'torchft', 'train'}
    needed = [line.split()[1] for line in lines if 'Requires-Dist' in line and 'extra' not in line]
    assert [requirement.partition('>')[0] for requirement in needed] == ['torch', 'numpy']


def test_it_takes_a_compressed_step_from_an_empty_folder(wheel, tmp_path):
    target = tmp_path / 'target'
    pip = [sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', '--no-index']
    subprocess.run([*pip, '--target', str(target), str(wheel)], check=True)
    (tmp_path / 'empty').mkdir()
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM],
        cwd=tmp_path / 'empty',
        env={**os.environ, 'PYTHONPATH': str(target), 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    file, native, changed, imported = done.stdout.splitlines()
    assert Path(file).is_relative_to(target)
    assert native == 'True', done.stderr
    assert int(changed) == 600  # 1 % of the matrix
    assert imported == '[]'


def test_there_is_one_version():
    tomllib = pytest.importorskip('tomllib')
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    assert project['project']['dynamic'] == ['version']
    assert project['tool']['setuptools']['dynamic']['version'] == {'attr': 'dgc.__version__'}
    assert f'\nversion: {dgc.__version__}\n' in (ROOT / 'CITATION.cff').read_text()


def test_the_bounds_of_the_extras_are_those_of_the_set_up():
    tomllib = pytest.importorskip('tomllib')
    bound = re.compile(r'^([\w-]+)>=([\d.]+)')
    lines = (ROOT / 'requirements.txt').read_text().splitlines()
    listed = dict(match.groups() for match in map(bound.match, lines) if match)
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    extras = project['optional-dependencies'].values()
    asked = [*project['dependencies'], *(each for extra in extras for each in extra)]
    bounded = dict(match.groups() for match in map(bound.match, asked) if match)
    assert len(bounded) > 10
    assert bounded == {name: listed.get(name) for name in bounded}
