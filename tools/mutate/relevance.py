"""Which test files name a module: a map computed from the imports of the tests.

A test names a module by importing it, by importing a name that a package takes from it
(`from dgc.exchanges import GTopK` names dgc/exchanges/gtopk.py), or as an attribute of a package
(`dgc.simulate`), or in a string, as an argument of `python -m`. What a helper beside the tests
names, the tests that import the helper or start it as a process name too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = 'dgc'
FEW = 8  # test files: the first tries are to be quick, and the whole suite follows


class Relevance:
    """The map from the files of dgc/ to test files, for one tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[Path, frozenset[Path]] = {}
        self.modules = {
            _module(path.relative_to(root)): path for path in sorted((root / PACKAGE).rglob('*.py'))
        }
        self.tests = {path: self._closure(path) for path in sorted(root.glob('tests/**/test_*.py'))}

    def tests_of(self, file: str) -> list[str]:
        """The few test files that concern the module of a file most closely.

        First those with the module's name in theirs, then those that name the module themselves,
        then those whose helpers do; among equals, those that name the fewest modules. Where no test
        names it, they are the tests of the modules that import it.

        Args:
            file: path of a module, relative to the root.

        Returns:
            At most ``FEW`` paths relative to the root.
        """
        stem = f'_{Path(file).stem}'
        wanted, seen = {self.root / file}, set[Path]()
        while wanted - seen:
            named = [
                (stem not in path.stem, not self._named(path) & wanted, len(files), path)
                for path, files in self.tests.items()
                if files & wanted or stem in path.stem
            ]
            if named:
                return [str(path.relative_to(self.root)) for *_, path in sorted(named)[:FEW]]
            seen |= wanted
            wanted = {path for path in self.modules.values() if self._named(path) & wanted}
        return []

    def _closure(self, test: Path) -> set[Path]:
        """Files of dgc/ that a test and the helpers beside it name."""
        found, waiting, seen = set[Path](), [test], set[Path]()
        while waiting:
            path = waiting.pop()
            seen.add(path)
            found |= self._named(path)
            waiting += [helper for helper in self._helpers(path) if helper not in seen]
        return found

    def _helpers(self, test: Path) -> Iterator[Path]:
        """Files of tests/ that a test imports or starts: beside it, or at the top."""
        names = {f'{module}.py' for module, _ in _imports(test)}
        names |= {text for text in _strings(test) if re.fullmatch(r'\w+\.py', text)}
        for name in sorted(names):
            for folder in (test.parent, self.root / 'tests'):
                if (helper := folder / name).is_file():
                    yield helper

    def _named(self, path: Path) -> frozenset[Path]:
        """Files of dgc/ that one file names, except itself."""
        if path not in self._names:
            names = [*_imports(path)]
            for text in _strings(path) & self.modules.keys() - {PACKAGE}:
                names += [(text, ''), (text, '__main__')]
            homes = {self._home(module, name) for module, name in names}
            self._names[path] = frozenset(home for home in homes - {path} if home is not None)
        return self._names[path]

    def _home(self, module: str, name: str) -> Path | None:
        """The file in which a name of a module is defined, as far as imports tell."""
        while module in self.modules:
            if (submodule := f'{module}.{name}') in self.modules:
                return self.modules[submodule]
            origin = _origins(self.modules[module]).get(name)
            if origin is None or origin == (module, name):
                return self.modules[module]
            module, name = origin
        return None


@cache
def _origins(path: Path) -> dict[str, tuple[str, str]]:
    """Names that a module takes from others: name here to (module, name there)."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
        for alias in node.names
    }


@cache
def _imports(path: Path) -> frozenset[tuple[str, str]]:
    """(module, name) of everything that a file imports, or reads as an attribute of a package."""
    found = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, '') for alias in node.names if alias.name != PACKAGE}
        elif isinstance(node, ast.Attribute):
            dotted = _dotted(node.value)
            if dotted.partition('.')[0] == PACKAGE:
                found.add((dotted, node.attr))
    return frozenset(found)


@cache
def _strings(path: Path) -> frozenset[str]:
    """All string constants of a file."""
    constants = (node.value for node in ast.walk(_tree(path)) if isinstance(node, ast.Constant))
    return frozenset(value for value in constants if isinstance(value, str))


def _dotted(node: ast.AST) -> str:
    """a.b.c of a chain of attributes, or nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f'{before}.{node.attr}'
    return ''


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def _module(path: Path) -> str:
    """dgc/codec/__init__.py → dgc.codec"""
    parts: Iterable[str] = path.with_suffix('').parts
    return '.'.join(part for part in parts if part != '__init__')
