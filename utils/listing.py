"""``train.py --list``: the algorithms, config files and settings that an experiment is made of."""

from __future__ import annotations

import ast
import importlib
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from utils.config import REQUIRED_NODE, Config, ConfigError, load
from utils.config.describe import describe, function_name

WIDTH = 100
MAX_COLUMN = 26  # a longer name or default gets a line of its own
PARTS = ('dataset', 'train.compression')  # nodes whose function files replace

INTRODUCTION = """\
An experiment is a stack of config files, executed in order, and settings:

    python train.py --configs configs/digits/cnn.py configs/dgc/wm5.py --configs.train.num_epochs 5
"""


def listing(declarations: Path) -> str:
    """The text of ``--list``.

    Args:
        declarations: configs/__init__.py, whose folder has the config files.
    """
    folders = [path.parent for path in sorted(declarations.parent.glob('*/__init__.py'))]
    stacks = {folder: load_folder(folder, declarations) for folder in folders}
    lines = [*INTRODUCTION.splitlines()]
    lines += section('ALGORITHMS', algorithms())
    lines += section('CONFIG FILES', config_files(stacks))
    lines += section('SETTINGS', settings(declarations, stacks))
    return '\n'.join(lines)


def section(title: str, lines: Sequence[str]) -> list[str]:
    """A titled section; nothing where it has no lines."""
    return ['', title, '', *lines] if lines else []


def algorithms() -> list[str]:
    """Each published algorithm with its paper and config files, from ``dgc.algorithms``."""
    try:
        table: dict[str, Any] = importlib.import_module('dgc.algorithms').ALGORITHMS
    except ModuleNotFoundError as error:
        if error.name != 'dgc.algorithms':
            raise
        return []
    lines = []
    for algorithm in table.values():
        lines += row(algorithm.name, '', algorithm.summary, 16, 0)
        lines += row('', '', f'{algorithm.paper}', 16, 0)
        lines += row('', '', ' '.join(map(str, algorithm.configs)), 16, 0)
    return lines


def config_files(stacks: dict[Path, Config | None]) -> list[str]:
    """Each config file with the first line of its docstring, experiments before algorithms."""
    trained = [folder for folder, configs in stacks.items() if configs and has_dataset(configs)]
    others = [folder for folder in stacks if folder not in trained]
    lines = ['What is trained. A stack begins with one of these files:', '']
    lines += [line for folder in trained for line in folder_files(folder)]
    lines += [
        '',
        'How it is trained. Files of these folders follow, and change what came before:',
        '',
    ]
    return lines + [line for folder in others for line in folder_files(folder)]


def folder_files(folder: Path) -> Iterator[str]:
    """A folder's line, and a line for each of its files."""
    name = f'{folder.parent.name}/{folder.name}/'
    yield from row(name, '', first_line(folder / '__init__.py'), MAX_COLUMN, 0)
    for file in sorted(folder.glob('*.py')):
        if file.name != '__init__.py':
            yield from row(f'  {file.name}', '', first_line(file), MAX_COLUMN, 0)


def first_line(file: Path) -> str:
    """The first line of a config file's docstring; '' where it has none."""
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ''
    return docstring.partition('\n')[0]


def settings(declarations: Path, stacks: dict[Path, Config | None]) -> list[str]:
    """Each setting with its default and description, by node."""
    lines = [
        'Each is set by --configs.NAME VALUE, or by a line of a config file. Settings of the',
        'functions that config files bring follow those that are always there.',
    ]
    for node in load([declarations], root=declarations)._nodes():
        lines += node_settings(node._path(), node)
    functions: dict[Callable[..., Any], tuple[str, list[str]]] = {}
    for folder, configs in stacks.items():
        for path in PARTS:
            func = function_at(configs, path)
            if func is not None:
                _, names = functions.setdefault(func, (f'configs.{path}', []))
                names.append(f'configs/{folder.name}/')
    for func, (path, names) in functions.items():
        lines += node_settings(f'{path}, with {", ".join(names)}', Config(func))
    return lines


def node_settings(title: str, node: Config) -> list[str]:
    """The settings of one node, under a title; nothing where it has none."""
    rows = [each for each in describe(node) if not is_plain_node(node, each.name)]
    if not rows:
        return []
    names = max(len(each.name) for each in rows if len(each.name) <= MAX_COLUMN)
    defaults = max(
        (len(each.default) for each in rows if len(each.default) <= MAX_COLUMN), default=0
    )
    function = function_name(node)
    heading = f'{title}: {function}' if function else title
    lines = ['', *textwrap.wrap(heading, WIDTH, subsequent_indent='    ')]
    for each in rows:
        lines += row(f'  {each.name}', each.default, each.line, names + 2, defaults)
    return lines


def row(name: str, default: str, line: str, names: int, defaults: int) -> list[str]:
    """Name, default and description in columns of these widths, in as many lines as needed."""
    head = f'{name:<{names}}  {default:<{defaults}}  ' if defaults else f'{name:<{names}}  '
    indent = ' ' * (names + 2 + (defaults + 2 if defaults else 0))
    text = textwrap.wrap(line, WIDTH - len(indent)) or ['']
    if len(head) > len(indent):
        return [head.rstrip(), *(indent + each for each in text if each)]
    return [(head + text[0]).rstrip(), *(indent + each for each in text[1:])]


def is_plain_node(node: Config, name: str) -> bool:
    """Whether a setting is a node that only groups others."""
    value = node._settings.get(name)
    return isinstance(value, Config) and value._func is None


def load_folder(folder: Path, declarations: Path) -> Config | None:
    """The settings with a folder's declarations alone; None where a library that they need is
    missing."""
    try:
        return load([folder / '__init__.py'], root=declarations).__copy__()
    except ConfigError:
        return None


def has_dataset(configs: Config) -> bool:
    """Whether a folder's declarations choose a dataset."""
    return configs._settings.get('dataset') is not REQUIRED_NODE


def function_at(configs: Config | None, path: str) -> Callable[..., Any] | None:
    """The function of the node with a dotted name; None where there is no such node."""
    value: Any = configs
    for name in path.split('.'):
        if not isinstance(value, Config):
            return None
        value = value._settings.get(name)
    return value._func if isinstance(value, Config) else None
