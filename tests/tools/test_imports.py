"""The lint of imports: it passes on this tree, and fails on what it is there to find."""

from __future__ import annotations

import ast

import pytest

from tools.imports import __main__ as command
from tools.imports.graph import circles, graph


def trees(sources: dict[str, str]) -> dict[str, ast.Module]:
    return {module: ast.parse(source) for module, source in sources.items()}


def test_this_tree_has_no_fault(capsys):
    assert command.main() == 0
    assert capsys.readouterr().out == ''


def test_a_circle_is_found_wherever_the_import_stands():
    found = graph(
        trees(
            {
                'dgc.a': 'from dgc.b import x',
                'dgc.b': 'def f():\n    from dgc.c import y',
                'dgc.c': 'if TYPE_CHECKING:\n    import dgc.a',
                'dgc.d': 'from dgc.a import z',
            }
        )
    )
    assert circles(found) == [['dgc.a', 'dgc.b', 'dgc.c']]


def test_a_package_that_re_exports_is_looked_through():
    found = graph(
        trees(
            {
                'dgc.p': 'from dgc.p.one import One\nfrom dgc.p.two import Two',
                'dgc.p.one': '',
                'dgc.p.two': 'from dgc.p import One',
            }
        )
    )
    assert found['dgc.p.two'] == {'dgc.p.one'}
    assert circles(found) == []


@pytest.mark.parametrize(
    ('module', 'source', 'fault'),
    [
        ('dgc.memory', 'from dgc.reducer import Reducer', 'dgc.memory imports dgc.reducer, which'),
        ('dgc.buckets', 'import utils.build', 'dgc.buckets imports utils.build, which'),
        ('tools.plan', 'from bench import rows', 'tools.plan imports bench.rows, which'),
        ('strange.new', '', 'strange.new is in no layer'),
    ],
)
def test_an_upward_import_is_found(module, source, fault):
    others = {'dgc.reducer': '', 'utils.build': '', 'bench.rows': '', 'bench': ''}
    (line,) = command.upward(graph(trees({module: source, **others})))
    assert line.startswith(fault)


@pytest.mark.parametrize(
    ('module', 'source', 'is_allowed'),
    [
        ('dgc.engines.horovod_engine', 'import horovod.torch', True),
        ('dgc.reducer', 'import horovod.torch', False),
        ('dgc.hooks', 'import torch.distributed', True),
        ('utils.build', 'from torch.distributed import Store', False),
        ('dgc.parameter_server.server', 'import zmq', False),
        ('dgc.parameter_server.sockets', 'import zmq', True),
        ('bench.rows', 'import horovod.torch', True),
    ],
)
def test_a_library_stays_behind_its_wall(module, source, is_allowed):
    assert (command.walls(trees({module: source})) == []) == is_allowed
