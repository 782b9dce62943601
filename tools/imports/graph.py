"""The import graph of the project's modules, read from their source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGES = ('dgc', 'models', 'datasets', 'utils', 'configs', 'tools', 'bench')

Graph = Mapping[str, frozenset[str]]  # module → modules of the project that it imports


def modules(root: Path) -> dict[str, ast.Module]:
    """Return the syntax tree of every module below ``root``, by its dotted name."""
    files = [root / 'train.py']
    for package in PACKAGES:
        files += sorted((root / package).rglob('*.py'))
    found = {}
    for file in files:
        parts = file.relative_to(root).with_suffix('').parts
        found['.'.join(parts).removesuffix('.__init__')] = ast.parse(file.read_text())
    return found


def graph(trees: Mapping[str, ast.Module]) -> Graph:
    """Return which modules import which, wherever in a file the import stands.

    A name that a package's ``__init__`` re-exports counts as imported from the module that defines
    it, so that importing from a package is no import of everything in it.
    """
    return {
        module: frozenset(
            origin
            for source, name in imports(tree)
            if (origin := defined_in(source, name, trees)) is not None and origin != module
        )
        for module, tree in trees.items()
    }


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each imported module and name; '' for a module as a whole."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ''
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                yield node.module, alias.name


def defined_in(source: str, name: str, trees: Mapping[str, ast.Module]) -> str | None:
    """Return the project's module that defines ``name`` of ``source``; None for other modules."""
    if f'{source}.{name}' in trees:
        return f'{source}.{name}'
    if source not in trees:
        return None
    for node in trees[source].body:  # re-exported?
        if isinstance(node, ast.ImportFrom) and node.module and name:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith(source):
                    return defined_in(node.module, alias.name, trees) or source
    return source


def circles(edges: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other in a circle (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(edges[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in edges:
        if module not in index:
            visit(module)
    return found
