"""One line about each setting: from `described`, or from the docstring of the node's function."""

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from utils.config.tree import Config, _Required, derived


class Described(NamedTuple):
    """A setting as a listing shows it. `line` is '' where there is no description."""

    name: str
    default: str
    line: str


def describe(node: Config) -> list[Described]:
    """The settings of `node` itself: those that are set, then its function's optional arguments.

    A setting that is a node with settings of its own shows the name of its function as default.
    """
    documented = argument_lines(node._func) if node._func is not None else {}
    optional = (name for name, p in node._parameters.items() if p.default is not p.empty)
    return [
        Described(name, _default(node, name), node._lines.get(name) or documented.get(name, ''))
        for name in dict.fromkeys((*node._settings, *optional))
    ]


def argument_lines(func: Callable[..., Any]) -> dict[str, str]:
    """The first sentence about each argument in the `Args:` or `Attributes:` of a docstring.

    These sections are in Google style: `name: text`, `name (type): text`, or `one, other: text`,
    with continuation lines indented further.
    """
    lines = (inspect.getdoc(func) or '').splitlines()
    heads = [i for i, line in enumerate(lines) if line in ('Args:', 'Attributes:')]
    if not heads:
        return {}
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines[heads[0] + 1 :]:
        if line and not line.startswith(' '):
            break
        if match := re.match(r'    ((?:\w+, )*\w+)(?: \(.*?\))?: *(.*)', line):
            names = match[1].split(', ')
            found |= dict.fromkeys(names, match[2])
        elif names and line.strip():
            found |= dict.fromkeys(names, f'{found[names[0]]} {line.strip()}')
    return {name: re.split(r'(?<=\.)\s', text)[0] for name, text in found.items()}


def _default(node: Config, name: str) -> str:
    value = node._settings[name] if name in node._settings else node._parameters[name].default
    if isinstance(value, _Required):
        return 'must be set'
    if isinstance(value, derived):
        return 'computed'
    if isinstance(value, Config):
        return function_name(value)
    return repr(value)


def function_of(node: Config) -> Callable[..., Any] | None:
    """The function that a node calls; None for a plain node."""
    return node._func


def function_name(node: Config) -> str:
    """The name of a node's function, without its module; '' for a plain node."""
    return '' if node._func is None else getattr(node._func, '__qualname__', repr(node._func))
