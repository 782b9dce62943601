"""``python -m tools.imports``: fail where modules import in a circle, upwards, or over a wall.

Part of ``make lint``. Exit code 1 where anything is wrong, with one line for each import.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.imports.graph import Graph, circles, graph, imports, modules
from tools.imports.layers import LAYERS, LIBRARIES

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Check the tree that this file is in; return the exit code."""
    trees = modules(ROOT)
    edges = graph(trees)
    faults = [f'circle: {" ".join(group)}' for group in circles(edges)]
    faults += upward(edges) + walls(trees)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def upward(edges: Graph) -> list[str]:
    """Return a line for each import of a higher layer, and for each module without a layer."""
    faults = []
    for module, others in sorted(edges.items()):
        level = level_of(module)
        if level is None:
            faults.append(f'{module} is in no layer: add it to tools/imports/layers.py')
            continue
        for other in sorted(others):
            above = level_of(other)
            if above is not None and above > level:
                faults.append(f'{module} imports {other}, which is above it')
    return faults


def walls(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return a line for each import of a library outside the modules that may use it."""
    faults = []
    for module, tree in sorted(trees.items()):
        if module.startswith(('tools', 'bench')):  # which run other projects beside this one
            continue
        for source, _ in imports(tree):
            for library, allowed in LIBRARIES.items():
                is_library = source == library or source.startswith(f'{library}.')
                if is_library and not module.startswith(allowed):
                    faults.append(f'{module} imports {source}: only {", ".join(allowed)} may')
    return faults


def level_of(module: str) -> int | None:
    """Return the number of a module's layer, counted from the bottom; None where it has none."""
    best, level = -1, None
    for number, layer in enumerate(LAYERS):
        for prefix in layer:
            if (module == prefix or module.startswith(f'{prefix}.')) and len(prefix) > best:
                best, level = len(prefix), number
    return level


if __name__ == '__main__':
    sys.exit(main())
