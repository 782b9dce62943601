"""Which file set each setting, and what later files of a stack replaced or cannot use.

Later files of a stack win. That is meant where a file refines what its own folder, or the program,
declares. Where it undoes what another file of the same stack was named for, the run would bear the
name of both files: a replaced setting is reported, and one that has no place any more is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.config.tree import Config, ConfigError, _flatten, _Name, derived

COMPOSITION = 'configs.train.compression.'  # what is set below must be in force, or is refused
COMMAND_LINE = 'the command line'


@dataclass(frozen=True)
class Source:
    """A file that sets settings.

    Attributes:
        file: The file that is executed, with an absolute path.
        word: The file of the stack, as it was written, that this one belongs to.
        declares: Whether it is an ``__init__.py``, whose settings the files beside it refine.
        base: Whether later folders build on its settings (``BASE = True`` in the file).
        root: Whether it is the program's own declarations.
    """

    file: Path
    word: str
    declares: bool = False
    base: bool = False
    root: bool = False


@dataclass(frozen=True)
class Loss:
    """A setting of ``loser`` that ``winner`` has replaced or removed.

    Attributes:
        path: The setting's dotted name.
        value: What it was.
        owner: If it was removed, the node that has no setting of that name; '' if it was replaced.
        owner_value: The function of that node.
    """

    path: str
    value: Any
    loser: Source
    winner: Source
    owner: str = ''
    owner_value: Any = None


class History:
    """Follows the settings of ``tree`` from file to file.

    Attributes:
        sources: For each setting that is in force, the file that set it.
    """

    def __init__(self, tree: Config) -> None:
        self._tree = tree
        self._last: dict[str, Any] = {}
        self._nodes: dict[str, Config] = {}
        self._losses: list[Loss] = []
        self.sources: dict[str, Source] = {}

    def record(self, source: Source) -> None:
        """Compare the tree with that before ``source`` was executed."""
        now = dict(_flatten(self._tree._path(), self._tree, raw=True))
        nodes = {node._path(): node for node in self._tree._nodes()}
        for path in self._chosen_again(now, nodes):
            self.sources[path] = source
        for path, value in self._last.items():
            if path in now and same(value, now[path]):
                continue
            loser = self.sources.pop(path)
            if path in now:
                self._losses.append(Loss(path, value, loser, source))
            else:
                owner = self._owner_without(path)
                self._losses.append(Loss(path, value, loser, source, owner, now.get(owner)))
        for path in now:
            self.sources.setdefault(path, source)
        self._last, self._nodes = now, nodes

    def _chosen_again(self, now: dict[str, Any], nodes: dict[str, Config]) -> Iterator[str]:
        """The nodes that a file has set to the function that they had.

        A node below a new one may be a copy, which ``using`` has made: it is not chosen again.
        """
        for path in self._last.keys() & now.keys() & self._nodes.keys() & nodes.keys():
            above = path.rpartition('.')[0]
            is_new = nodes[path] is not self._nodes[path]
            is_top = nodes.get(above) is self._nodes.get(above)
            if is_new and is_top and same(now[path], self._last[path]):
                yield path

    def _owner_without(self, path: str) -> str:
        """The nearest node above ``path`` that is left, if it accepts no setting of that name."""
        node, above = self._tree, self._tree._path()
        for name in path.split('.')[1:]:
            value = node._settings.get(name)
            if not isinstance(value, Config):
                return '' if node._func is None or node._accepts(name) else above
            node, above = value, f'{above}.{name}'
        return ''

    def refuse(self) -> None:
        """Raise a ConfigError for a setting of the composition that a later file made useless."""
        for loss in self._relevant():
            if loss.owner and loss.path.startswith(COMPOSITION):
                chosen = f'{loss.owner} is {show(loss.owner_value)} ({loss.winner.word})'
                name = loss.path[len(loss.owner) + 1 :].partition('.')[0]
                raise ConfigError(
                    f'{loss.path} = {show(loss.value)} ({loss.loser.word}) has no effect: '
                    f'{chosen}, which takes no {name}; leave one of the two files out'
                )

    def warnings(self) -> list[str]:
        """A line for each pair of files of which the later one replaces settings of the other."""
        replaced: dict[tuple[str, str], list[str]] = {}
        for loss in self._relevant():
            if loss.loser.declares and (loss.owner or not self._is_choice(loss)):
                continue
            now = f'no setting of {show(loss.owner_value)}' if loss.owner else (
                show(self._last[loss.path]) if loss.path in self._last else 'not set'
            )  # fmt: skip
            text = f'{loss.path} was {show(loss.value)}, is {now}'
            texts = replaced.setdefault((loss.winner.word, loss.loser.word), [])
            texts.extend([text] if text not in texts else [])
        return [
            f'warning: {winner} replaces what {loser} set: {"; ".join(texts)}'
            for (winner, loser), texts in replaced.items()
        ]

    def _relevant(self) -> Iterator[Loss]:
        """Losses that another file of the stack caused, and that are in force at the end."""
        for loss in self._losses:
            loser, winner = loss.loser, loss.winner
            own = loser.declares and loser.file.parent == winner.file.parent
            refined = loser.declares and not winner.declares and not loss.owner
            back = loss.path in self._last and same(self._last[loss.path], loss.value)
            if not (loser.root or loser.base or own or refined or back):
                yield loss

    @staticmethod
    def _is_choice(loss: Loss) -> bool:
        """Whether the setting is a node, which chooses a function, and not one of its values."""
        return isinstance(loss.value, _Name)


def same(one: Any, other: Any) -> bool:
    """Whether two values of a snapshot are equal. Values of any type have a repr; not all an ==."""
    return one is other or (type(one) is type(other) and repr(one) == repr(other))


def show(value: Any) -> str:
    """A value of a snapshot, as an error shows it: a function without its module."""
    if isinstance(value, derived):
        return 'computed'
    return value.rpartition('.')[2] if isinstance(value, _Name) else repr(value)


def blame(sources: dict[str, Source], above: str, message: str, tree: Config) -> str:
    """Which files set the settings that ``message`` is about, in parentheses; '' if none is.

    Args:
        sources: For each setting, the file that set it.
        above: Only settings at or below this dotted name.
        message: Of an error. A setting is meant if its name, or the function or string that it is
            set to, is a word of it.
        tree: The settings.
    """
    words, found = set(re.findall(r'\w+', message)), []
    for path, value in _flatten(tree._path(), tree, raw=True):
        source = sources.get(path)
        if source is None or source.root or not f'{path}.'.startswith(f'{above}.'):
            continue
        shown = show(value)
        if path.rpartition('.')[2] in words or (isinstance(value, str) and shown in words):
            found.append(f'{path} = {shown}: {source.word}')
    return f' ({"; ".join(found)})' if found else ''
