"""The names of runs: files, overrides, plain characters, a bounded length (failures row 20)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.naming import by_setting, check_part, is_same_stack, run_name

DGC = [
    'configs/cifar/resnet20.py',
    'configs/dgc/wm5.py',
    'configs/dgc/fp16.py',
    'configs/dgc/int32.py',
]
LR = 'configs.train.optimizer.lr'


@pytest.mark.parametrize(
    ('paths', 'suffix', 'size', 'name'),
    [
        (DGC, '.e500', 8, 'cifar.resnet20+dgc.wm5,fp16,int32.e500.np8'),
        (['configs/digits/cnn.py'], '', 2, 'digits.cnn.np2'),
        (['configs/digits/cnn.py', 'configs/digits/cnn.py'], '', 1, 'digits.cnn.np1'),
        (['configs/dgc/wm5.py', 'configs/dgc/fp16.py'], '', 4, 'dgc.wm5,fp16.np4'),
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


# At most 119 bytes: of longer stacks the name has a part and a digest.
@given(st.lists(st.tuples(words, words), min_size=1, max_size=20, unique=True))
def test_stacks_of_different_files_have_different_names(files):
    """Every file can be read back from the name, in the order in which folders first appear."""
    name = run_name([f'configs/{folder}/{file}.py' for folder, file in files])
    folders: dict[str, list[str]] = {}
    for folder, file in files:
        folders.setdefault(folder, []).append(file)
    assert unfold(name.removesuffix('.np1')) == folders


def unfold(name: str) -> dict[str, list[str]]:
    """'a.x,y+b.z' -> {'a': ['x', 'y'], 'b': ['z']}"""
    parts = (part.split('.', 1) for part in name.split('+'))
    return {folder: files.split(',') for folder, files in parts}


@pytest.mark.parametrize(
    ('overrides', 'name'),
    [
        ({LR: '0.05', 'configs.seed': '1'}, 'digits.cnn@optimizer.lr=0.05,seed=1.np1'),
        ({'configs.data.num_threads_per_worker': '1', 'configs.engine.size': '4'},
         'digits.cnn.np1'),
        ({'configs.dataset.root': '/data/x'}, 'digits.cnn.np1'),
        ({'configs.train.scheduler': 'None'}, 'digits.cnn@scheduler=None.np1'),
    ],
)  # fmt: skip
def test_overrides_are_part_of_the_name(overrides, name):
    """failures row 20"""
    assert run_name(['configs/digits/cnn.py'], '', 1, overrides) == name


def test_overrides_are_named_as_literals_and_the_last_of_a_setting_counts():
    """failures row 20"""
    words = [(LR, '0.10'), (LR, '1e-1'), ('configs.train.metric', "'x'"), ('configs.a', 'b c')]
    assert by_setting(words) == {LR: '0.1', 'configs.train.metric': 'x', 'configs.a': 'b c'}


texts = st.text(max_size=300)


@given(
    st.lists(
        texts.filter(lambda text: '/' not in text and text.strip('.')), min_size=1, max_size=9
    ),
    st.dictionaries(texts, texts, max_size=9),
)
def test_names_are_plain_and_short(files, overrides):
    """failures row 20: no character that a shell expands, room for a suffix and ~1 in 255 bytes."""
    paths = [f'configs/{number}/{file}.py' for number, file in enumerate(files)]
    name = run_name(paths, '.suffix', 1024, overrides)
    assert re.fullmatch(r'[A-Za-z0-9_.,+=@-]+', name)
    assert len(run_name(paths, 40 * 'x', 1024, overrides)) <= 245
    assert is_same_stack(name, paths, '.suffix', 1024)


def test_what_is_shortened_keeps_its_difference():
    """failures row 20"""
    deep = [f'configs/{"folder" * 20}/file{number}.py' for number in range(10)]
    names = {run_name(deep), run_name(deep[:-1]), run_name(deep[::-1])}
    swept = {run_name(deep, '', 1, {LR: 60 * '1' + str(n)}) for n in range(5)}
    odd = {run_name([f'configs/a/{file}.py']) for file in ('a b', 'a_b', 'a[b', 'ä', 'ö')}
    assert (len(names), len(swept), len(odd)) == (3, 5, 5)


def test_the_same_stack_with_other_overrides_is_found():
    """failures row 20"""
    files = ['configs/digits/cnn.py']
    same = [run_name(files, '.x', 2), run_name(files, '.x', 2, {LR: '0.1'})]
    others = [
        run_name(files, '', 2), run_name(files, '.x', 4), run_name(files, '.xy', 2),
        run_name([*files, 'configs/dgc/wm5.py'], '.x', 2), f'{same[0]}~1',
    ]  # fmt: skip
    assert [is_same_stack(name, files, '.x', 2) for name in same + others] == [True] * 2 + [
        False
    ] * 5


@pytest.mark.parametrize('text', ['a/b', '../x', 'a\nb', 'x' * 41])
def test_what_cannot_be_part_of_a_name_is_refused(text):
    """failures row 18: --suffix a/b"""
    with pytest.raises(ValueError, match='argument --suffix'):
        check_part('--suffix', text, 40)
