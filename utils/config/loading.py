"""Filling the tree: config files first, the command line last."""

import ast
import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from utils.config.tree import Config, ConfigError, configs, hint


def load(
    paths: Sequence[str | Path],
    overrides: Iterable[str] = (),
    known: Iterable[str] = (),
    root: str | Path | None = None,
) -> Config:
    """Clear `configs`, execute the files onto it, apply the command line, and return it.

    Each file, and each `__init__.py` of the folders above it, is executed once. New names may be
    declared in `__init__.py` files only; any other file can change what is declared, and can put a
    new node, with names of its own, in the place of a declared one.

    Args:
        paths: config files, in the order in which they take effect.
        overrides: command-line words such as ['--configs.seed', '1', '--configs.train.lr=0.1'],
            applied after all files; later ones win.
        known: the program's other options, to suggest one where an option is misspelt.
        root: the program's declarations, executed first, so that a file may be in any folder.
    """
    check_exists(paths)
    configs._settings.clear()
    first = [] if root is None else [Path(os.path.abspath(root))]
    files = (file for path in paths for file in _with_declarations(Path(os.path.abspath(path))))
    for file in dict.fromkeys([*first, *files]):  # each once, in order
        configs._lock(file.name != '__init__.py')
        _execute(str(file))
    configs._lock(True)
    for name, text in _parse_overrides(overrides, known):
        _override(name, text)
    return configs


def check_exists(paths: Iterable[str | Path]) -> None:
    """Raise a ConfigError that names the first config file that is not there."""
    for path in map(Path, paths):
        if not path.is_file():
            folder = path.parent
            files = (*folder.parent.glob('*/*.py'), *folder.glob('*/*.py'), *folder.glob('*.py'))
            known = {_last_two(file): str(file) for file in files if file.name != '__init__.py'}
            raise ConfigError(f'there is no config file {path}{hint(_last_two(path), known)}')


def _last_two(path: Path) -> str:
    """configs/cifar/resnet20.py -> 'cifar/resnet20'"""
    return '/'.join(path.with_suffix('').parts[-2:])


def _with_declarations(file: Path) -> list[Path]:
    """`file`, preceded by the `__init__.py` of its folder, of the folder above, and so on."""
    files, folder = [file], file.parent
    while (folder / '__init__.py').is_file():
        files.insert(0, folder / '__init__.py')
        folder = folder.parent
    return files


class _Loader(SourceFileLoader):
    """Compiles on every load: a byte-code cache misses a file changed within a second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _execute(file: str) -> None:
    module = ModuleType(Path(file).stem)
    module.__file__ = file
    try:
        _Loader(module.__name__, file).exec_module(module)
    except Exception as error:
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == file]
        line = lines[-1] if lines else getattr(error, 'lineno', 0)
        kind = '' if isinstance(error, ConfigError) else f'{type(error).__name__}: '
        raise ConfigError(f'{os.path.relpath(file)}:{line}: {kind}{error}') from error


def _parse_overrides(words: Iterable[str], known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """['--configs.a.b', '1', '--configs.c=2'] -> ('configs.a.b', '1'), ('configs.c', '2')"""
    words = iter(words)
    for word in words:
        name, equals, text = word.partition('=')
        if not name.startswith('--configs.'):
            settings = (f'--{node._path(name)}' for node in configs._nodes() for name in node)
            options = {option: option for option in (*known, *settings)}
            raise ConfigError(f'unknown argument {name}{hint(name, options)}')
        if not equals:
            text = next(words, '--')
            if text.startswith('--'):
                raise ConfigError(f'argument {name} needs a value')
        yield name[2:], text


def _override(path: str, text: str) -> None:
    _, *parents, name = path.split('.')
    node = configs
    for parent in parents:
        value = node[parent]
        if not isinstance(value, Config):
            raise ConfigError(f'{node._path(parent)} is {value!r}, which has no settings')
        node = value
    node[name] = _parse_value(node, name, text)


def _parse_value(node: Config, name: str, text: str) -> Any:
    """Parse text from the command line as a value of the setting's present type.

    It is a Python literal, or else a string. A float may be written as an int, a tuple as a list.
    A setting without a value (unset, None, cannot be computed) accepts any type.
    """
    try:
        old = node[name]
    except ConfigError:
        old = None
    try:
        new = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        new = text
    parameter = node._parameters.get(name)
    if isinstance(old, Config):
        if new is None and old._func is not None:
            return None
        raise ConfigError(f'{old._path()} = {new!r}: it is a node; set its settings, not itself')
    if old is None or (new is None and parameter is not None and parameter.default is None):
        return new
    expected = type(old)
    if expected is int and parameter is not None and 'float' in str(parameter.annotation):
        expected = float  # torch.optim.SGD(…, weight_decay: float = 0)
    allowed = {float: (float, int), list: (list, tuple), tuple: (list, tuple)}
    if type(new) not in allowed.get(expected, (expected,)):
        kinds = f'expected {expected.__name__}, got {type(new).__name__}'
        raise ConfigError(f'{node._path(name)} = {new!r}: {kinds}')
    return expected(new) if expected in allowed else new
