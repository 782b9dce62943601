"""The name of a run, which is its folder under `runs/`: config files, overrides, number of workers.

A name has characters that no shell expands, and at most 240 bytes.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# Settings that do not change what is trained.
UNNAMED = (
    *('configs.checkpoint.', 'configs.data.', 'configs.elastic.', 'configs.engine.'),
    'configs.log.',
    'configs.server.',
    'configs.agreement',
    *('configs.dataset.root', 'configs.dataset.download'),
)
MAX_STACK, MAX_OVERRIDES, MAX_SUFFIX, MAX_NAME = 120, 60, 40, 240  # bytes
AT = '@'  # between config files and overrides


def run_name(
    paths: Sequence[str | Path],
    suffix: str = '',
    size: int = 1,
    overrides: Mapping[str, str] | None = None,
) -> str:
    """The name of a run: its config files by folder, `suffix`, its overrides, number of workers.

    A folder is written once, and several files of it are joined by commas::

        >>> run_name(['configs/cifar/resnet20.py', 'configs/dgc/wm5.py', 'configs/dgc/fp16.py'],
        ...          suffix='.e500', size=8)
        'cifar.resnet20+dgc.wm5,fp16.e500.np8'
        >>> run_name(['configs/digits/cnn.py'], size=2,
        ...          overrides={'configs.train.optimizer.lr': '0.05', 'configs.seed': '1'})
        'digits.cnn@optimizer.lr=0.05,seed=1.np2'

    Paths are relative to the folder called `configs`, wherever it is, if they contain one. Files or
    overrides that are long, or have other characters, are shortened to a part and a digest.
    Settings that do not change what is trained, such as the number of threads, are left out.
    """
    stack = _plain(stack_name(paths), MAX_STACK)
    return f'{stack}{suffix}{_override_name(overrides or {})}.np{size}'


def is_same_stack(name: str, paths: Sequence[str | Path], suffix: str, size: int) -> bool:
    """Whether a run of this name has these config files, suffix and workers, and any overrides."""
    stack, end = f'{_plain(stack_name(paths), MAX_STACK)}{suffix}', f'.np{size}'
    return name == stack + end or (name.startswith(stack + AT) and name.endswith(end))


def stack_name(paths: Sequence[str | Path]) -> str:
    """The config files by folder, in the order in which folders first appear, each file once."""
    folders: dict[str, dict[str, None]] = {}
    for path in paths:
        *folder, file = _parts(Path(path))
        folders.setdefault('.'.join(folder), {})[file] = None
    return '+'.join(f'{folder}.{",".join(files)}' if folder else ','.join(files)
                    for folder, files in folders.items())  # fmt: skip


def by_setting(overrides: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Overrides of the command line by setting, as literals are written: 0.10 is '0.1'."""
    found = {}
    for name, text in overrides:
        try:
            value = ast.literal_eval(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            value = text
        found[name] = value if isinstance(value, str) else repr(value)
    return found


def _override_name(overrides: Mapping[str, str]) -> str:
    """{'configs.train.optimizer.lr': '0.05'} -> '@optimizer.lr=0.05'"""
    named = sorted(
        f'{name.removeprefix("configs.").removeprefix("train.")}={value}'
        for name, value in overrides.items()
        if not name.startswith(UNNAMED)
    )
    return AT + _plain(','.join(named), MAX_OVERRIDES) if named else ''


def _plain(text: str, limit: int) -> str:
    """`text` if it is short and has plain characters only; else a part of it and its digest."""
    plain = re.sub(r'[^\w.,+=-]', '_', text, flags=re.ASCII)
    if plain == text and len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:10]
    return f'{plain[: limit - len(digest) - 1]}-{digest}'


def _parts(path: Path) -> list[str]:
    """configs/cifar/resnet20.py -> ['cifar', 'resnet20']"""
    parts = [part for part in path.with_suffix('').parts if part not in (path.anchor, '..')]
    for i, part in enumerate(parts[:-1]):
        if part == 'configs':
            return parts[i + 1 :]
    return parts


def check_part(option: str, text: str, limit: int) -> None:
    """Raise ValueError for a text of the command line that cannot be part of a folder's name."""
    if '/' in text or not text.isprintable():
        raise ValueError(f'argument {option}: {text!r} is part of the name of a folder, without /')
    if len(text.encode(errors='surrogateescape')) > limit:
        raise ValueError(f'argument {option}: {text[:20]!r}… has more than {limit} bytes')
