"""The kernels under sanitizers: the fuzz calls every operator, and the builds are told apart.

`make sanitize` itself compiles for minutes; what it found is in tests/dgc/test_ops_native.py.
"""

from __future__ import annotations

import pytest
import torch

from dgc import ops
from dgc.ops import build as ops_build
from tools.sanitize import __main__ as command
from tools.sanitize import build, fuzz

native_only = pytest.mark.skipif(
    not ops.is_native(torch.device('cpu')), reason='the kernels are not compiled'
)


@native_only
def test_random_calls_return_or_raise(capsys):
    """docs/failures.md, row 24."""
    assert fuzz.main(['--seconds', '1', '--seed', '7']) == 0
    calls, returned, raised = (
        int(word.replace(',', '')) for word in capsys.readouterr().out.split() if word[0].isdigit()
    )
    assert calls == returned + raised and min(returned, raised) > 0


@native_only
@pytest.mark.parametrize('name', fuzz.OPERATORS)
def test_arguments_that_nothing_has_spoiled_fit(name):
    for seed in range(20):
        getattr(torch.ops.dgc, name)(*fuzz.OPERATORS[name](fuzz.Draw(seed)))


@native_only
def test_every_operator_is_called():
    every = [name.partition('.')[0] for name in torch._C._dispatch_get_all_op_names()]
    names = {name.removeprefix('dgc::') for name in every if name.startswith('dgc::')}
    assert names - {'holders'} == set(fuzz.OPERATORS)


def test_each_build_has_a_place_of_its_own(monkeypatch):
    paths = [next(iter(ops_build.library_paths().values()))]
    for variant in build.VARIANTS:
        monkeypatch.setattr(ops_build, 'is_x86', ops_build.is_x86)
        monkeypatch.setattr(ops_build, 'FLAGS', ['-O3', '-fPIC'])
        build.choose(variant)
        assert '-O3' not in ops_build.FLAGS and '-fPIC' in ops_build.FLAGS
        assert ops_build.is_x86() is False or variant != 'baseline'
        paths.append(next(iter(ops_build.library_paths().values())))
    assert len(set(paths)) == 3


def test_a_compiler_without_sanitizers_is_told_in_one_line(monkeypatch, capsys):
    monkeypatch.setenv('CXX', '/nowhere/g++')
    with pytest.raises(SystemExit) as end:
        command.main([])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('tools.sanitize: /nowhere/g++ cannot be run')
