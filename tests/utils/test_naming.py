"""The names of runs: the published scheme, and what folding must not lose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.naming import run_name

DGC = [
    'configs/cifar/resnet20.py',
    'configs/dgc/wm5.py',
    'configs/dgc/fp16.py',
    'configs/dgc/int32.py',
]


@pytest.mark.parametrize(
    ('paths', 'suffix', 'size', 'name'),
    [
        (DGC, '.e500', 8, '[cifar.resnet20+dgc.[wm5+fp16+int32]].e500.np8'),
        (['configs/digits/cnn.py'], '', 2, 'digits.cnn.np2'),
        (['configs/digits/cnn.py', 'configs/digits/cnn.py'], '', 1, 'digits.cnn.np1'),
        (['configs/dgc/wm5.py', 'configs/dgc/fp16.py'], '', 4, 'dgc.[wm5+fp16].np4'),
        (['/srv/dgc/configs/digits/cnn.py'], '', 1, 'digits.cnn.np1'),
        (['./configs/digits/cnn.py'], '', 1, 'digits.cnn.np1'),
        (['../mine/wide.py'], '', 1, 'mine.wide.np1'),
        (['configs/configs.py'], '', 1, 'configs.np1'),
        ([], '', 1, '.np1'),
    ],
)
def test_run_name(paths, suffix, size, name):
    assert run_name(paths, suffix, size) == name


words = st.text('abc', min_size=1, max_size=2)


@given(st.lists(st.tuples(words, words), min_size=1, unique=True))
def test_stacks_of_different_files_have_different_names(files):
    """Every file can be read back from the name, in the order in which folders first appear."""
    name = run_name([f'configs/{folder}/{file}.py' for folder, file in files])
    folders: dict[str, list[str]] = {}
    for folder, file in files:
        folders.setdefault(folder, []).append(file)
    assert unfold(name.removesuffix('.np1')) == folders


def unfold(name: str) -> dict[str, list[str]]:
    """'[a.[x+y]+b.z]' -> {'a': ['x', 'y'], 'b': ['z']}"""
    found, depth, start, parts = {}, 0, 0, []
    outer = name.startswith('[')
    text = name[1:-1] if outer else name
    for i, letter in enumerate(text + '+'):
        depth += (letter == '[') - (letter == ']')
        if letter == '+' and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    for part in parts:
        folder, files = part.split('.', 1)
        found[folder] = files.strip('[]').split('+')
    return found
