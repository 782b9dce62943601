"""Hugging Face's package ``datasets``, whose name is that of this one.

The folder of ``train.py`` is the first on the path, so that ``import datasets`` finds this package.
When a name is asked for that is not here, the other package is imported and takes the name
``datasets``, which its own modules need. The classes of this package stay available in it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = Path(__file__).parent


def attribute(name: str) -> Any:
    """An attribute of the other package.

    Raises:
        ImportError: If there is no other package of this name, or it has no such attribute.
    """
    current = sys.modules['datasets']
    theirs = current if Path(str(current.__file__)).parent != OURS else load(current)
    try:
        return getattr(theirs, name)
    except AttributeError:
        raise ImportError(
            f"neither this project's datasets nor {theirs.__file__} has {name!r}"
        ) from None


def load(ours: ModuleType) -> ModuleType:
    """Import the other package as ``datasets``, with the public names of ``ours`` added."""
    spec = find()
    if spec is None or spec.loader is None:
        raise ImportError(
            f'datasets is a package of this project, with {", ".join(ours.__all__)}; Hugging '
            "Face's package of that name is not installed: pip install datasets"
        )
    aside = {key: sys.modules.pop(key) for key in list(sys.modules) if is_ours(key)}
    theirs = sys.modules['datasets'] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(theirs)
    except BaseException:
        for key in [key for key in sys.modules if is_ours(key)]:
            del sys.modules[key]
        sys.modules.update(aside)
        raise
    for key, module in aside.items():  # for imports of submodules, and for pickled objects
        sys.modules.setdefault(key, module)
    for name in ours.__all__:
        setattr(theirs, name, getattr(ours, name))
    return theirs


def is_ours(name: str) -> bool:
    """Whether a module's name is that of this package or of a module in it."""
    return name.partition('.')[0] == 'datasets'


def find() -> ModuleSpec | None:
    """The package ``datasets`` on the path outside this project."""
    path = [entry for entry in sys.path if Path(entry or '.').resolve() != OURS.parent.resolve()]
    spec = PathFinder.find_spec('datasets', path)
    return spec if spec is not None and spec.origin is not None else None
