"""The name of a run, which is its folder under `runs/` and lists its config files."""

from collections.abc import Sequence
from pathlib import Path

# Folders and files by name; a file maps to an empty dictionary.
_Tree = dict[str, '_Tree']


def run_name(paths: Sequence[str | Path], suffix: str = '', size: int = 1) -> str:
    """The name of a run: its config files, folded by folder, `suffix`, and the number of workers.

    The scheme is that of the published DGC code: a folder is written once, and several files of it
    stand in brackets::

        >>> run_name(['configs/cifar/resnet20.py', 'configs/dgc/wm5.py', 'configs/dgc/fp16.py'],
        ...          suffix='.e500', size=8)
        '[cifar.resnet20+dgc.[wm5+fp16]].e500.np8'
        >>> run_name(['configs/digits/cnn.py'], size=2)
        'digits.cnn.np2'

    Paths are relative to the folder called `configs`, wherever it is, if they contain one.
    """
    tree: _Tree = {}
    for path in paths:
        branch = tree
        for part in _parts(Path(path)):
            branch = branch.setdefault(part, {})
    return f'{_fold(tree)}{suffix}.np{size}'


def _parts(path: Path) -> list[str]:
    """configs/cifar/resnet20.py -> ['cifar', 'resnet20']"""
    parts = [part for part in path.with_suffix('').parts if part not in (path.anchor, '..')]
    for i, part in enumerate(parts[:-1]):
        if part == 'configs':
            return parts[i + 1 :]
    return parts


def _fold(tree: _Tree) -> str:
    """{'dgc': {'wm5': {}, 'fp16': {}}} -> 'dgc.[wm5+fp16]'"""
    names = [f'{name}.{_fold(branch)}' if branch else name for name, branch in tree.items()]
    return names[0] if len(names) == 1 else f'[{"+".join(names)}]' if names else ''
