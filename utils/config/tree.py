"""The tree of settings: its nodes, what may be set on them, and how objects are built."""

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import cache, partial
from typing import Any

from utils.config.replaced import REPLACED

SUFFIX = '@configs'  # of the name of a config file's module


class ConfigError(Exception):
    """Something in the configuration is wrong. Its text is one line, meant for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(' '.join(message.split()))


class UnknownSetting(ConfigError, AttributeError):
    """A name that does not exist. Also an AttributeError, so that `hasattr` and `getattr` work."""


class _Required:
    """The class of the values of settings that must be set."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name  # copies and unpickled values are the same object


REQUIRED = _Required('REQUIRED')
REQUIRED_NODE = _Required('REQUIRED_NODE')  # a callable node, and nothing else


class derived:  # noqa: N801 (reads like `property`, and is one)
    """A setting computed from others: `derived(lambda: configs.train.num_epochs - 5)`.

    It is computed whenever the tree is read, so that it follows later changes of the settings that
    it depends on, until it is replaced by a value.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function


class described:  # noqa: N801 (reads like `derived`)
    """A default with the line that `train.py --list` shows beside it.

    `configs.seed = described(42, 'Seed of the weights.')` sets 42. The line belongs to the name: it
    stays when another value is set. With `optional`, the command line may set None.
    """

    def __init__(self, value: Any, line: str, optional: bool = False) -> None:
        self.value = value
        self.line = line
        self.optional = optional


# The derived settings being computed, outermost first; a ContextVar has one chain per thread.
_computing: ContextVar[tuple[tuple['Config', str], ...]] = ContextVar('computing', default=())


class Config:
    """A node of the tree: named settings and, in a callable node, the function that takes them.

    `Config(func, **settings)` takes only settings that `func` accepts; those not set read as the
    defaults of `func`. `Config()` is a plain node, and takes any name until `load` locks it.

    Read and write settings as attributes, or as items where a name is no identifier:
    `configs.train.meters['acc/{}_top1']`. The methods' names (build, using, items, flat, check)
    and those with a leading underscore are taken, and refused.

    A node knows its place in the tree, so it has only one: attaching it a second time attaches a
    copy. Lists, tuples and dicts are copied when they are set, so that no two trees share one.
    """

    __slots__ = (
        *('_func', '_lines', '_name', '_open'),
        *('_optional', '_parameters', '_parent', '_settings'),
    )

    def __init__(self, func: Callable[..., Any] | None = None, /, **settings: Any) -> None:
        if func is not None and not callable(func):
            raise ConfigError(f'Config({func!r}): the first argument must be callable')
        self._func = func
        self._parameters, self._open = _accepted_by(func)
        self._parent: Config | None = None
        self._name: str = getattr(func, '__name__', 'Config')
        self._settings: dict[str, Any] = {}
        self._lines: dict[str, str] = {}  # what `described` says, by name
        self._optional: set[str] = set()
        for name, value in settings.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith('_') or name in dir(Config):
            raise ConfigError(f'{self._path(name)} cannot be a setting: Config uses that name')
        if '.' in name or '=' in name:
            raise ConfigError(f"{self._path(name)} cannot be a setting: its name holds '.' or '='")
        if not self._accepts(name):
            raise self._unknown(name)
        if isinstance(value, described):
            self._lines[name] = value.line
            self._optional |= {name} if value.optional else set()
            value = value.value
        self._check_node(name, value)
        self._settings[name] = _map(partial(self._attached, name), value)

    def __getitem__(self, name: str) -> Any:
        parameter = self._parameters.get(name)
        if name in self._settings:
            value = self._settings[name]
        elif parameter is not None and parameter.default is not parameter.empty:
            value = parameter.default
        else:
            raise self._unknown(name)
        if isinstance(value, _Required):
            raise _must_be_set({self._path(name): value})
        return self._computed(name, value.function) if isinstance(value, derived) else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Config.__slots__:
            object.__setattr__(self, name, value)
        else:
            self[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith('_'):  # no setting: a protocol is looked for, such as __array__
            raise AttributeError(name)
        return self[name]

    def __contains__(self, name: str) -> bool:
        return name in self._settings

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def items(self, raw: bool = False) -> Iterator[tuple[str, Any]]:
        """Names and values of what is set; `raw` leaves `derived` and `REQUIRED` as they are."""
        for name, value in tuple(self._settings.items()):
            yield name, value if raw else self[name]

    def using(self, func: Callable[..., Any], /) -> 'Config':
        """A new node that calls `func` instead, with the settings of this one that `func` accepts.

        Settings that `func` does not accept are dropped, such as an optimizer's `nesterov`.
        """
        node = Config(func)
        for name, value in self.items(raw=True):
            if node._accepts(name):
                node[name] = value
        return node

    def build(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the node's function with the node's settings, and return what it returns.

        Nodes among the settings, also inside lists, tuples and dicts, are built first. A plain
        node builds a dict. Further arguments pass through, and a keyword here has precedence over
        the setting of that name. The tree is unchanged: building twice gives two equal objects.
        """
        settings = {name: self[name] for name in self if name not in kwargs}
        return (self._func or dict)(*args, **_map(_built, settings), **kwargs)

    def check(self) -> None:
        """Raise a ConfigError that names every REQUIRED setting left unset at or below this node,
        or a derived setting that cannot be computed."""
        settings = [(node, name) for node in self._nodes() for name in node]
        values = {node._path(name): node._settings[name] for node, name in settings}
        unset = {path: value for path, value in values.items() if isinstance(value, _Required)}
        if unset:
            raise _must_be_set(unset)
        for node, name in settings:
            node[name]  # reads, and so computes, it

    def flat(self) -> dict[str, object]:
        """The resolved settings by dotted name: {'configs.train.num_epochs': 200, …}.

        Derived settings have their value; functions and classes are shown by name; a callable
        node is shown as the name of its function, followed by its settings.
        """
        return dict(_flatten(self._path(), self))

    def _accepted_paths(self) -> Iterator[str]:
        """The dotted names of what may be set at and below this node, upper nodes first."""
        for node in self._nodes():
            yield from map(node._path, dict.fromkeys((*node._settings, *node._parameters)))

    def __str__(self) -> str:
        return '\n'.join(f'{name} = {value!r}' for name, value in self.flat().items())

    def __repr__(self) -> str:
        return f'<Config {self._path()}>'

    def __copy__(self) -> 'Config':
        copy = Config(self._func, **self._settings)
        copy._lines, copy._optional = dict(self._lines), set(self._optional)
        return copy

    def __deepcopy__(self, memo: object) -> 'Config':
        return self.__copy__()

    def _path(self, *names: str) -> str:
        """Dotted name of this node, or of a setting of it: 'configs.train.num_epochs'."""
        above = self._parent._path(self._name) if self._parent else self._name
        return '.'.join((above, *names))

    def _accepts(self, name: str) -> bool:
        return self._open or name in self._settings or name in self._parameters

    def _attached(self, name: str, value: Any) -> Any:
        """`value`, and if it is a node then with this one as its parent."""
        if isinstance(value, Config):
            value = value if value._parent is None else value.__copy__()
            value._parent, value._name = self, name
        return value

    def _is_optional(self, name: str) -> bool:
        """Whether the command line may set None."""
        parameter = self._parameters.get(name)
        return name in self._optional or (parameter is not None and parameter.default is None)

    def _check_node(self, name: str, value: Any) -> None:
        """Refuse a value in the place of a callable node, such as a function without Config()."""
        old = self._settings.get(name)
        is_node = old is REQUIRED_NODE or (isinstance(old, Config) and old._func is not None)
        accepted: tuple[type, ...] = (Config, derived, _Required)
        if not is_node and isinstance(value, str | type | types.FunctionType):
            is_node = takes_object(self._func, name)
        if is_node and value is not None and not isinstance(value, accepted):
            shown = getattr(value, '__name__', repr(value))
            raise ConfigError(
                f'{self._path(name)} = {shown}: give it a Config(function, …), in a config file'
            )

    def _unknown(self, name: str) -> UnknownSetting:
        path = self._path(name)
        if name in self._parameters:
            return UnknownSetting(f'{path} is not set, and has no default')
        owner = f' of {_name_of(self._func)}' if self._func else ''
        remedy = f': {REPLACED[path]}' if path in REPLACED else self._hint(name)
        return UnknownSetting(f'{path} is not a setting{owner}{remedy}')

    def _hint(self, name: str) -> str:
        """A question that suggests a setting of exactly this name elsewhere, below this node rather
        than not, or else the nearest name in this node; '' if there is none."""
        root: Config = self
        while root._parent is not None:
            root = root._parent
        for node in (*self._nodes(), *root._nodes()):
            if node is not self and (name in node._settings or name in node._parameters):
                return f'; did you mean {node._path(name)}?'
        return hint(name, {each: self._path(each) for each in (*self._settings, *self._parameters)})

    def _computed(self, name: str, function: Callable[[], Any]) -> Any:
        """The value of a derived setting."""
        chain, link = _computing.get(), (self, name)
        if link in chain:
            cycle = [node._path(name) for node, name in (*chain[chain.index(link) :], link)]
            raise ConfigError(f'{cycle[0]} is derived from itself: {" -> ".join(cycle)}')
        token = _computing.set((*chain, link))
        try:
            return function()
        except ConfigError:
            raise
        except Exception as error:
            message = f'{self._path(name)} cannot be computed: {type(error).__name__}: {error}'
            raise ConfigError(message) from error
        finally:
            _computing.reset(token)

    def _nodes(self) -> Iterator['Config']:
        """This node and all below it, parents first."""
        yield self
        leaves: list[Any] = []
        _map(leaves.append, dict(self._settings))
        for leaf in leaves:
            if isinstance(leaf, Config):
                yield from leaf._nodes()

    def _lock(self, locked: bool) -> None:
        """Refuse (or allow) new names in every plain node that the tree has now."""
        for node in self._nodes():
            if node._func is None:
                node._open = not locked


def _accepted_by(func: Callable[..., Any] | None) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters of `func` that have a name, and whether it accepts any other name too."""
    if func is None:
        return {}, True
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return {}, True
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    extra = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return {p.name: p for p in parameters if p.kind in named}, extra


@cache
def _hints(func: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """The types that each parameter of `func` accepts, without None; empty where it does not say.

    `Memory | None` is (Memory,).
    """
    try:
        hints = typing.get_type_hints(func.__init__ if isinstance(func, type) else func)  # type: ignore[misc]
    except Exception:  # annotations are only a help: any may be wrong
        return {}
    unions = (types.UnionType, typing.Union)
    found = {}
    for name, annotation in hints.items():
        is_union = typing.get_origin(annotation) in unions
        members = typing.get_args(annotation) if is_union else (annotation,)
        found[name] = tuple(each for each in members if each is not type(None))
    return found


def takes_object(func: Callable[..., Any] | None, name: str) -> bool:
    """Whether a parameter accepts nothing but objects of classes that a Config() can build."""
    members = _hints(func).get(name, ()) if func is not None else ()
    modules = ('builtins', 'typing', 'collections.abc')
    return bool(members) and all(
        isinstance(each, type) and each.__module__ not in modules and not issubclass(each, Enum)
        for each in members
    )


def plain_types(func: Callable[..., Any] | None, name: str) -> tuple[type, ...]:
    """The types of a parameter that accepts numbers, booleans and strings only; else none."""
    members = _hints(func).get(name, ()) if func is not None else ()
    return members if all(each in (bool, int, float, str) for each in members) else ()


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Nested lists, tuples and dicts with `function` applied to every leaf; new containers."""
    if type(value) is dict:
        return {key: _map(function, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_map(function, item) for item in value])
    return function(value)


def _built(value: Any) -> Any:
    return value.build() if isinstance(value, Config) else value


class _Name(str):
    """A function's name, which prints without quotation marks, unlike a string."""

    def __repr__(self) -> str:
        return str(self)


def _name_of(func: Any) -> _Name:
    named = func if hasattr(func, '__qualname__') else type(func)
    return _Name(f'{named.__module__.removesuffix(SUFFIX)}.{named.__qualname__}')


def _shown(value: Any) -> Any:
    """`value` as `flat` shows it: alike in all processes, without memory addresses."""
    if isinstance(value, Config):  # inside a list, tuple or dict
        settings = (f'{name}={_map(_shown, item)!r}' for name, item in value.items())
        return _Name(f'{_name_of(value._func or Config)}({", ".join(settings)})')
    return _name_of(value) if callable(value) and hasattr(value, '__qualname__') else value


def _flatten(path: str, value: Any, raw: bool = False) -> Iterator[tuple[str, Any]]:
    """The settings at and below `path` by dotted name; `raw` computes no derived ones."""
    if not isinstance(value, Config):
        yield path, _map(_shown, value)
        return
    if value._func is not None:
        yield path, _name_of(value._func)
    for name, setting in value.items(raw):
        yield from _flatten(f'{path}.{name}', setting, raw)


def _must_be_set(unset: Mapping[str, _Required]) -> ConfigError:
    """The error that names unset settings; only values can be set on the command line."""
    by_word = next((path for path, value in unset.items() if value is REQUIRED), '')
    where = f'in a config file, or --{by_word} VALUE' if by_word else 'in a config file'
    return ConfigError(f'{", ".join(unset)} must be set ({where})')


def hint(word: str, known: Mapping[str, str], cutoff: float = 0.6) -> str:
    """A question that suggests the known name nearest to `word`; '' if none is near.

    Args:
        word: What was written.
        known: What to suggest for each name.
        cutoff: The least similarity, from 0 to 1.
    """
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f'; did you mean {known[near[0]]}?' if near else ''


configs = Config()
configs._name = 'configs'
