"""Refusals of settings of a wrong type, by the name of the setting, before anything uses them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def check_number(name: str, value: object) -> None:
    """Raise TypeError unless the setting ``name`` is a number; a string of digits is none."""
    if hasattr(value, '__float__') and not isinstance(value, bool):
        return
    remedy = f': write {name}={value}, without quotes' if is_number_in_text(value) else ''
    raise TypeError(f'{name} must be a number, got {shortened(value)}{remedy}')


def check_numbers(**settings: object) -> None:
    """``check_number`` for each of these settings."""
    for name, value in settings.items():
        check_number(name, value)


def check_part(name: str, value: object, kind: type, example: str) -> None:
    """Raise TypeError unless the setting ``name`` is an object of ``kind``.

    Args:
        name: As the user writes it.
        value: What was given.
        kind: What is wanted.
        example: An expression of such an object, for the message.
    """
    if isinstance(value, kind):
        return
    wanted = f'{name} must be an object of the class {kind.__name__}'
    known = {plain(each.__name__): each for each in concrete(kind)}
    if isinstance(value, type) and issubclass(value, kind):
        example = f'{value.__name__}(…)'
    elif isinstance(value, str) and plain(value) in known:
        meant = known[plain(value)]
        package = kind.__module__.rpartition('.')[0]
        is_ours = meant.__module__.startswith(f'{package}.')
        example = f'{meant.__name__}(…), imported from {package if is_ours else meant.__module__}'
    elif inspect.isfunction(value):
        example = f'{value.__name__}(…)'
    raise TypeError(f'{wanted}, got {shortened(value)}: write {name}={example}')


def concrete(kind: type) -> Iterator[type]:
    """Yield all subclasses of ``kind`` that have objects."""
    subclasses: list[type] = kind.__subclasses__()
    for each in subclasses:
        if not inspect.isabstract(each):
            yield each
        yield from concrete(each)


def plain(name: str) -> str:
    """Return a name without case, hyphens and underscores."""
    return name.lower().replace('-', '').replace('_', '')


def shortened(value: Any) -> str:
    """Return what a value is, in a few words."""
    if isinstance(value, type):
        return f'the class {value.__name__} itself'
    if inspect.isfunction(value):
        return f'the function {value.__name__} itself'
    if value is None or isinstance(value, str | int | float):
        text = repr(value)
        return text if len(text) <= 60 else f'{text[:59]}…'
    return f'an object of the class {type(value).__name__}'


def is_number_in_text(value: object) -> bool:
    """Return whether ``value`` is a string that reads as a number."""
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return isinstance(value, str)
