"""train.py --list: every config file and every setting has its line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dgc.parameter_server import ServerSettings
from utils.cli import DECLARATIONS
from utils.config import Config, described, load
from utils.config.describe import argument_lines, describe
from utils.listing import first_line, listing

FILES = sorted(DECLARATIONS.parent.glob('*/*.py'))


@pytest.fixture(scope='module')
def text() -> str:
    return listing(DECLARATIONS)


def declared() -> list[tuple[str, str]]:
    """Every setting of configs/__init__.py with its line, and every setting of the server."""
    found = []
    for node in load([DECLARATIONS], root=DECLARATIONS)._nodes():
        own = node._func is None or node._func.__module__.startswith(('dgc.parameter_', 'utils.'))
        for setting in describe(node):
            value = node._settings.get(setting.name)
            groups = isinstance(value, Config) and value._func is None
            if not groups and (own or setting.name in node._settings):
                found.append((node._path(setting.name), setting.line))
    return found


def test_every_declared_setting_has_a_line():
    settings = dict(declared())
    assert {'configs.seed', 'configs.server.bind', 'configs.train.optimizer.momentum'} <= set(
        settings
    )
    assert [name for name, line in settings.items() if not line] == []


def test_every_config_file_has_a_line():
    assert [file for file in FILES if not first_line(file)] == []


def test_every_file_and_setting_is_listed_in_lines_of_100_characters(text):
    for file in FILES:
        name = f'configs/{file.parent.name}/' if file.name == '__init__.py' else f'  {file.name} '
        assert name in text
    for path, _ in declared():
        assert f'  {path.rpartition(".")[2]} ' in text or '{}' in path
    for name in ServerSettings.__dataclass_fields__:
        assert f'  {name} ' in text
    assert max(map(len, text.splitlines())) <= 100


def test_experiments_come_before_algorithms(text):
    files = text.partition('CONFIG FILES')[2]
    places = [files.index(part) for part in ('configs/imagenet/', 'How it is', 'configs/dgc/')]
    assert places == sorted(places)


def test_settings_of_functions_name_the_folders_that_bring_them(text):
    assert 'configs.train.compression, with configs/dgs/: dual_way' in text
    assert 'configs.dataset, with configs/digits/: Digits' in text


def test_algorithms_come_from_the_table_of_the_library(monkeypatch):
    module = ModuleType('dgc.algorithms')
    module.ALGORITHMS = {
        'x': SimpleNamespace(
            name='x', summary='Sends nothing.', paper='arXiv 1', configs=['configs/x/x.py']
        )
    }
    monkeypatch.setitem(sys.modules, 'dgc.algorithms', module)
    algorithms = listing(DECLARATIONS).partition('CONFIG FILES')[0]
    assert all(part in algorithms for part in ('ALGORITHMS', 'Sends nothing.', 'arXiv 1', 'x/x.py'))


def documented(a, b=2, c=3):
    """Do something.

    Args:
        a: Required. Not shown.
        b (int, optional): The first
            line. The second.
        c: Other.

    Returns:
        d: None.
    """


def test_lines_are_the_first_sentences_of_a_docstrings_arguments():
    assert argument_lines(documented) == {'a': 'Required.', 'b': 'The first line.', 'c': 'Other.'}
    assert [s.name for s in describe(Config(documented))] == ['b', 'c']
    assert argument_lines(lambda: None) == {}


def test_a_line_stays_with_its_name_when_the_value_changes():
    node = Config()
    node.x = described(1, 'A number.')
    node.x = 2
    for each in (node, node.__copy__()):
        assert [tuple(setting) for setting in describe(each)] == [('x', '2', 'A number.')]


def test_list_needs_no_config_files(capsys):
    import train
    from utils.cli import parse_arguments

    assert train.main(*parse_arguments(['--list'])) == 0
    assert 'SETTINGS' in capsys.readouterr().out


def test_the_declarations_are_those_of_the_checkout():
    assert Path(__file__).parents[2] / 'configs/__init__.py' == DECLARATIONS
