"""Filling the tree: config files first, the command line last."""

import ast
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from utils.config import conflicts
from utils.config.conflicts import COMMAND_LINE, History, Source
from utils.config.tree import SUFFIX, Config, ConfigError, configs, hint, plain_types

log = logging.getLogger(__name__)

# The file that set each setting of `configs`, or the command line.
sources: dict[str, Source] = {}


def load(
    paths: Sequence[str | Path],
    overrides: Iterable[str] = (),
    known: Iterable[str] = (),
    root: str | Path | None = None,
) -> Config:
    """Clear `configs`, execute the files onto it, apply the command line, and return it.

    Each file, and each `__init__.py` of the folders above it that sets settings, is executed once.
    New names may be declared in `__init__.py` files only; any other file can change what is
    declared, and can put a new node, with names of its own, in the place of a declared one.

    A warning is logged where a file replaces what another file of the stack was named for.

    Args:
        paths: config files, in the order in which they take effect.
        overrides: command-line words such as ['--configs.seed', '1', '--configs.train.lr=0.1'],
            applied after all files; later ones win.
        known: the program's other options, to suggest one where an option is misspelt.
        root: the program's declarations, executed first, so that a file may be in any folder. Files
            outside their folder can import the modules beside them, and their own package.

    Raises:
        ConfigError: For a file that fails, a name that is unknown, or a setting of the composition
            that a later file makes useless.
    """
    history = _execute_stack(paths, root)
    sources.update(history.sources)
    for name, text in parse_overrides(overrides, known):
        _override(name, text)
        sources[name] = Source(Path(), COMMAND_LINE)
    for line in history.warnings():
        log.warning(line)
    return configs


def names_of_settings(
    paths: Sequence[str | Path], root: str | Path | None = None
) -> frozenset[str]:
    """Clear `configs`, execute the files onto it, and return the dotted names of all its settings.

    Args:
        paths, root: As of `load`.

    Raises:
        ConfigError: As `load` does.
    """
    _execute_stack(paths, root)
    return frozenset(configs._accepted_paths())


def _execute_stack(paths: Sequence[str | Path], root: str | Path | None) -> History:
    """Clear `configs`, execute the files onto it, and lock it; return which file set what."""
    check_exists(paths)
    configs._settings.clear()
    configs._lines.clear()
    configs._optional.clear()
    sources.clear()
    history = History(configs)
    for source in _stack(paths, None if root is None else Path(os.path.abspath(root))):
        configs._lock(not source.declares)
        outside = root is not None and not source.file.is_relative_to(Path(root).absolute().parent)
        module = _execute(str(source.file), importable=outside)
        history.record(replace(source, base=getattr(module, 'BASE', False) is True))
    configs._lock(True)
    history.refuse()
    return history


def blame(node: Config, message: str) -> str:
    """Which files set the settings of `node` that an error's `message` is about, in parentheses;
    '' if it is about none that a file or the command line has set."""
    return conflicts.blame(sources, node._path(), message, configs)


def check_exists(paths: Iterable[str | Path]) -> None:
    """Raise a ConfigError that names the first config file that is not there.

    It suggests the file with the nearest name in the folder `configs` and beside the missing one,
    also for a name with dots, such as digits.cnn.
    """
    for path in map(Path, paths):
        if path.is_file():
            continue
        folder, name = path.parent, _last_two(path)
        if folder == Path() and path.suffix not in ('', '.py'):
            name = str(path).removesuffix('.py').replace('.', '/')
        files = [*Path('configs').glob('*/*.py')]
        if folder != Path():
            files += (*folder.parent.glob('*/*.py'), *folder.glob('*/*.py'), *folder.glob('*.py'))
        known = {_last_two(file): str(file) for file in files if file.name != '__init__.py'}
        raise ConfigError(f'there is no config file {path}{hint(name, known)}')


def _last_two(path: Path) -> str:
    """configs/cifar/resnet20.py -> 'cifar/resnet20'"""
    return '/'.join(path.with_suffix('').parts[-2:])


def _stack(paths: Sequence[str | Path], root: Path | None) -> list[Source]:
    """The files to execute, each once, in order; `root` first."""
    found = {} if root is None else {root: Source(root, str(root), declares=True, root=True)}
    for path in paths:
        file = Path(os.path.abspath(path))
        for each in (*_declarations_above(file), file):
            declares = each.name == '__init__.py'
            source = Source(each, str(path), declares, root=declares and not found)
            found.setdefault(each, source)
    return list(found.values())


def _declarations_above(file: Path) -> list[Path]:
    """The `__init__.py` files of the folders above `file` that set settings, topmost first.

    Those of a Python package that has config files in it set none, and are not executed.
    """
    return [init for init in _packages_above(file) if _sets_settings(init)]


def _packages_above(file: Path) -> list[Path]:
    """The `__init__.py` of the folder of `file`, of the folder above, and so on, topmost first."""
    files: list[Path] = []
    folder = file.parent
    while (folder / '__init__.py').is_file():
        files.insert(0, folder / '__init__.py')
        folder = folder.parent
    return files


def _sets_settings(init: Path) -> bool:
    """Whether a file uses the variable `configs`. One that cannot be read is said to, and its error
    is reported when it is executed."""
    try:
        nodes = ast.walk(ast.parse(init.read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return True
    return any(isinstance(node, ast.Name) and node.id == 'configs' for node in nodes)


class _Loader(SourceFileLoader):
    """Compiles on every load: a byte-code cache misses a file changed within a second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _execute(file: str, importable: bool = False) -> ModuleType:
    """Execute a config file.

    Args:
        file: its absolute path.
        importable: whether it can import the modules beside it, and those of its Python package,
            also relatively. They come last on the path, so that they hide nothing.

    Until it ends, its module is in ``sys.modules``, where dataclasses look for the names of types;
    by a name that no import statement has.
    """
    module = ModuleType(Path(file).stem + SUFFIX)
    module.__file__ = file
    if importable:
        packages = _packages_above(Path(file))
        top = packages[0].parent.parent if packages else Path(file).parent
        sys.path.extend(
            folder for folder in (str(Path(file).parent), str(top)) if folder not in sys.path
        )
        if packages and not any(map(_sets_settings, packages)):
            module.__package__ = '.'.join(Path(file).parent.relative_to(top).parts)
    sys.modules[module.__name__] = module
    try:
        _Loader(module.__name__, file).exec_module(module)
    except Exception as error:
        raise ConfigError(_explain(file, error)) from error
    finally:
        sys.modules.pop(module.__name__, None)
    return module


def _explain(file: str, error: Exception) -> str:
    """One line about an error that a config file raised: file, line, error, remedy."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    line = lines[-1] if lines else getattr(error, 'lineno', None)
    where = os.path.relpath(file) if line is None else f'{os.path.relpath(file)}:{line}'
    kind = '' if isinstance(error, ConfigError) else f'{type(error).__name__}: '
    remedy = ''
    if line is None and isinstance(error, SyntaxError | UnicodeError):
        remedy = '; is it a text file in UTF-8?'
    if isinstance(error, ImportError) and 'relative import' in str(error):
        remedy = '; import a module beside a config file by its name alone'
    return f'{where}: {kind}{error}{remedy}'


def parse_overrides(words: Iterable[str], known: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """['--configs.a.b', '1', '--configs.c=2'] -> ('configs.a.b', '1'), ('configs.c', '2')"""
    words = iter(words)
    for word in words:
        name, equals, text = word.partition('=')
        if not name.startswith('--configs.'):
            raise ConfigError(f'unknown argument {name}{_hint_option(name, known)}')
        if not equals:
            text = next(words, '--')
            if text.startswith('--'):
                raise ConfigError(f'argument {name} needs a value')
        yield name[2:], text


def _hint_option(word: str, known: Iterable[str]) -> str:
    """The option or setting that an unknown argument may mean: an option but for a letter, a
    setting whose last name is the word (--lr, --batch-size), or the one of the nearest name."""
    settings = [f'--{path}' for path in configs._accepted_paths()]
    by_last_name = {each.rpartition('.')[2]: each for each in reversed(settings)}
    last = word.lstrip('-').replace('-', '_')
    if not word.startswith('-'):
        return ''
    own = {option: option for option in known}
    if misspelt := hint(word, own, cutoff=0.9):
        return misspelt
    if last in by_last_name:
        return f'; did you mean {by_last_name[last]}?'
    return hint(word, own | {each: each for each in settings}) or hint(last, by_last_name)


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
    A setting without a value (unset, None, cannot be computed) accepts the types of its annotation,
    or any type.
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
    if new is None and (node._is_optional(name) or old is None):
        return None
    types = plain_types(node._func, name) if old is None else ()
    if types == (str,):
        return new if isinstance(new, str) else text  # 127 or 1_1_1, which Python reads as a number
    if old is None and (not types or type(new) in types or (float in types and type(new) is int)):
        return new
    expected = types[0] if old is None else type(old)
    if expected is int and parameter is not None and 'float' in str(parameter.annotation):
        expected = float  # torch.optim.SGD(…, weight_decay: float = 0)
    allowed = {float: (float, int), list: (list, tuple), tuple: (list, tuple)}
    if type(new) not in allowed.get(expected, (expected,)):
        kinds = f'expected {expected.__name__}, got {type(new).__name__}'
        if expected is str:
            kinds += f'; quote it twice to give a string: "{text!r}"'
        raise ConfigError(f'{node._path(name)} = {new!r}: {kinds}')
    return expected(new) if expected in allowed else new
