"""The stack: which files run, in which order, what they may declare, and how they fail."""

import sys

import config_parts
import pytest
from config_parts import complaint, write
from hypothesis import given
from hypothesis import strategies as st

from utils.config import ConfigError, configs, load


def test_files_run_in_order_after_the_declarations_above_them(tmp_path):
    root = tmp_path / 'configs'
    write(root / '__init__.py', 'configs.log = ["root"]')
    for name in ('a/__init__', 'a/one', 'a/two', 'b/__init__', 'b/three'):
        write(root / f'{name}.py', f'configs.log = configs.log + ["{name}"]')
    load([root / 'a/two.py', root / 'b/three.py', root / 'a/one.py'])
    assert configs.log == ['root', 'a/__init__', 'a/two', 'b/__init__', 'b/three', 'a/one']


def test_a_file_named_twice_runs_once(tmp_path):
    write(tmp_path / 'c/__init__.py', 'configs.count = 0')
    leaf = write(tmp_path / 'c/leaf.py', 'configs.count += 1')
    init = str(tmp_path / 'c/__init__.py')
    assert load([leaf, init, leaf, tmp_path / 'c/../c/leaf.py']).count == 1


def test_folders_without_init_are_not_part_of_the_stack(tmp_path):
    write(tmp_path / '__init__.py', 'raise RuntimeError("too far up")')
    write(tmp_path / 'gap/configs/__init__.py', 'configs.a = 1')
    leaf = write(tmp_path / 'gap/configs/leaf.py', 'configs.a = 2')
    assert load([leaf]).a == 2


def test_relative_paths_work_from_inside_the_stack(stack, monkeypatch):
    monkeypatch.chdir(stack / 'cifar')
    assert load(['resnet20.py']).train.num_epochs == 200
    monkeypatch.chdir(stack.parent)
    assert load(['configs/cifar/resnet20.py']).train.num_epochs == 200


def test_load_returns_the_one_tree_cleared(resnet20):
    assert load(resnet20) is configs
    load(resnet20, ['--configs.seed', '1'])
    assert load(resnet20).seed == 42
    assert list(load([])) == []


@given(st.lists(st.sampled_from(['cifar/resnet20.py', 'dgc/wm5.py', 'dgc/fp16.py']), max_size=5))
def test_loading_twice_gives_the_same_tree(shared_stack, names):
    paths = [shared_stack / name for name in names]
    overrides = ['--configs.train.num_epochs', '7'] if names else []
    first = load(paths, overrides).flat()
    second = load(paths, overrides).flat()
    assert first == second
    assert list(first) == list(second)


def test_lists_are_not_shared_between_loads(stack, monkeypatch):
    monkeypatch.setattr(config_parts, 'VALUE', [{'a': [1]}])
    load([stack / 'value/__init__.py']).x[0]['a'].append(2)
    assert load([stack / 'value/__init__.py']).x == [{'a': [1]}]


def test_a_file_changed_within_the_second_is_read_again(tmp_path):
    for value in ('1', '2', '3'):
        assert load([write(tmp_path / '__init__.py', f'configs.x = {value}')]).x == int(value)
    assert not (tmp_path / '__pycache__').exists()


def test_a_missing_file_is_named_before_anything_runs(stack, resnet20):
    load(resnet20, ['--configs.seed', '3'])
    missing, near = stack / 'cifar/resnet20x.py', stack / 'cifar/resnet20.py'
    text = f'there is no config file {missing}; did you mean {near}?'
    assert complaint([*resnet20, missing]) == text
    assert configs.seed == 3


@pytest.mark.parametrize(
    ('wrong', 'right'),
    [
        ('configs/cfar/resnet20.py', 'configs/cifar/resnet20.py'),
        ('configs/cifar/resnet20', 'configs/cifar/resnet20.py'),
        ('configs/fp16.py', 'configs/dgc/fp16.py'),
        ('configs/dgc/xyzzy_nothing_like_it.py', None),
        ('configs/cifar', None),
    ],
)
def test_the_nearest_file_is_suggested(stack, monkeypatch, wrong, right):
    monkeypatch.chdir(stack.parent)
    text = f'there is no config file {wrong}'
    assert complaint([wrong]) == (f'{text}; did you mean {right}?' if right else text)


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('1 / 0', 'ZeroDivisionError: division by zero'),
        ("raise ConfigError('no\\n  such GPU')", 'no such GPU'),
        ('configs.train.num_epoch = 1',
         'configs.train.num_epoch is not a setting; did you mean configs.train.num_epochs?'),
        ('configs.trian.num_epochs = 1',
         'configs.trian is not a setting; did you mean configs.train?'),
        ('configs.train.optimizer.lrr = 1',
         'configs.train.optimizer.lrr is not a setting of config_parts.SGD;'
         ' did you mean configs.train.optimizer.lr?'),
        ('print(configs.train.num_epochs)',
         'configs.train.num_epochs must be set (in a config file,'
         ' or --configs.train.num_epochs VALUE)'),
    ],
)  # fmt: skip
def test_errors_name_file_and_line(stack, monkeypatch, line, message):
    monkeypatch.chdir(stack.parent)
    write(stack / 'bad/leaf.py', f'configs.seed = 1\n{line}\nconfigs.seed = 2')
    write(stack / 'bad/__init__.py', '')
    assert complaint(['configs/bad/leaf.py']) == f'configs/bad/leaf.py:4: {message}'


def test_syntax_errors_name_file_and_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / 'leaf.py', 'configs.a = = 1')
    text = complaint(['leaf.py'])
    assert text.startswith('leaf.py:3: SyntaxError: ')
    assert text.endswith('invalid syntax (leaf.py, line 3)')


def test_the_cause_of_an_error_is_kept_for_debugging(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load([write(tmp_path / 'leaf.py', '1 / 0')])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# ---------------------------------------------------------------- declaring


def test_init_files_declare_also_when_they_come_late(stack, resnet20):
    load([*resnet20, stack / 'dgc/fp16.py'])
    assert configs.train.wire == 'float16'
    load(resnet20)
    assert 'wire' not in configs.train


def test_a_leaf_file_declares_nothing_even_in_nodes_from_init_files(stack):
    write(stack / 'extra/__init__.py', 'configs.extra = Config(a=Config(b=1))')
    leaf = write(stack / 'extra/leaf.py', 'configs.extra.a.c = 1')
    assert complaint([leaf]).endswith('leaf.py:3: configs.extra.a.c is not a setting')


def test_a_file_may_lie_anywhere_once_the_declarations_are_named(stack, tmp_path_factory):
    leaf = write(tmp_path_factory.mktemp('mine') / 'leaf.py', 'configs.seed = 5')
    assert complaint([leaf]).endswith('configs.seed is not a setting')
    assert load([leaf, stack / 'cifar/resnet20.py'], root=stack / '__init__.py').seed == 5
    own = write(stack / 'own/leaf.py', 'configs.seed = 6')  # in a folder without an __init__.py
    assert load([own], root=stack / '__init__.py').seed == 6


def test_a_leaf_file_may_put_a_new_node_in_a_declared_place(stack):
    leaf = write(
        stack / 'swap/leaf.py',
        'configs.train.meters = Config()\n'
        "configs.train.meters['loss'] = Config(parts.settings_of, window=10)\n",
    )
    other = write(stack / 'swap/other.py', 'configs.train.meters.accuracy = 1')
    write(stack / 'swap/__init__.py', '')
    assert list(load([leaf]).train.meters) == ['loss']
    assert complaint([leaf, other]).endswith('configs.train.meters.accuracy is not a setting')


def test_after_loading_the_tree_stays_locked(resnet20):
    load(resnet20)
    configs.seed = 1
    with pytest.raises(
        ConfigError, match=r'^configs\.sed is not a setting; did you mean configs\.seed\?$'
    ):
        configs.sed = 1


# ---------------------------------------------------------------- packages and helpers: row 22


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A Python package of the user's own, with a config file in a folder of it; and its root."""
    monkeypatch.setattr('sys.path', [*sys.path])
    folder = tmp_path / 'project/mypackage'
    write_plain(folder / '__init__.py', 'from mypackage.nets import WIDTH\n')
    write_plain(folder / 'nets.py', 'WIDTH = 7\n')
    write_plain(folder / 'experiments/__init__.py', '')
    write_plain(folder / 'experiments/helper_of_row_22.py', 'DEPTH = 3\n')
    yield folder
    for name in [name for name in sys.modules if name.partition('.')[0] == 'mypackage']:
        del sys.modules[name]
    sys.modules.pop('helper_of_row_22', None)


def write_plain(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_init_files_of_a_package_are_not_config_files(package, stack):
    """failures row 22: executed as config files they could not import, and ran twice."""
    write_plain(package / '__init__.py', 'count = globals().get("count", 0) + 1\nimport mypackage')
    leaf = write(package / 'experiments/leaf.py', 'configs.seed = 5')
    assert load([leaf], root=stack / '__init__.py').seed == 5
    assert 'mypackage' not in sys.modules


@pytest.mark.parametrize(
    'line',
    [
        'from helper_of_row_22 import DEPTH as X',
        'from .helper_of_row_22 import DEPTH as X',
        'from mypackage.experiments.helper_of_row_22 import DEPTH as X',
        'from ..nets import WIDTH as X',
        'import mypackage.nets; X = mypackage.nets.WIDTH',
    ],
)
def test_a_config_file_imports_what_is_beside_it_and_its_package(package, stack, line):
    """failures row 22"""
    leaf = write(package / 'experiments/leaf.py', f'{line}\nconfigs.seed = X')
    assert load([leaf], root=stack / '__init__.py').seed == (3 if 'DEPTH' in line else 7)


def test_a_relative_import_below_declarations_is_explained(stack):
    """failures row 22: the folder of declarations is no package."""
    leaf = write(stack / 'cifar/leaf.py', 'from .helper import x')
    assert 'import a module beside a config file by its name alone' in complaint([leaf])


def test_a_helper_hides_nothing_of_the_program(package, stack):
    """failures row 22: folders of config files come last on the path."""
    write_plain(package / 'experiments/random.py', 'raise RuntimeError("hidden")')
    leaf = write(package / 'experiments/leaf.py', 'import random\nconfigs.seed = 5')
    assert load([leaf], root=stack / '__init__.py').seed == 5


ANNOTATED = """\
from __future__ import annotations
import dataclasses, json, typing
from utils.config import Config, configs
@dataclasses.dataclass
class Row:
    number: int = 3
    kinds: typing.ClassVar[list] = []
class Node(typing.NamedTuple):
    next: Node | None = None
typing.get_type_hints(Node)
configs.train.scheduler = Config(Row, number=json.loads('4') + Row().number)
"""


@pytest.mark.parametrize('name', ['leaf', 'json', 'dataclasses'])
def test_a_config_file_defines_classes_as_a_module_does(stack, tmp_path, name):
    """A dataclass with annotations as text ended with an AttributeError of NoneType."""
    before = dict(sys.modules)
    leaf = write_plain(tmp_path / f'{name}.py', ANNOTATED)
    loaded = load([leaf], root=stack / '__init__.py')
    assert loaded.train.scheduler.build().number == 7
    assert loaded.train.scheduler.flat()['configs.train.scheduler'] == f'{name}.Row'
    assert sys.modules == before


@pytest.mark.parametrize('encoding', ['utf-16', 'utf-32', 'latin-1'])
def test_a_file_in_another_encoding_is_said_to_be(tmp_path, monkeypatch, encoding):
    """failures row 18: UTF-16 gave the line None."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'leaf.py').write_bytes('"""Größe"""\nconfigs.seed = 1\n'.encode(encoding))
    text = complaint(['leaf.py'])
    assert text.startswith('leaf.py:') and 'None' not in text
    assert 'UTF-8' in text or 'utf-8' in text


@pytest.mark.parametrize('wrong', ['cifar.resnet20', 'cifar/resnet20.py', 'resnet20.py'])
def test_a_name_with_dots_means_a_config_file(stack, monkeypatch, wrong):
    """failures row 18: --configs digits.cnn suggested a file of models/"""
    monkeypatch.chdir(stack.parent)
    write_plain(stack.parent / 'models/cifar.py', '')
    text = f'there is no config file {wrong}; did you mean configs/cifar/resnet20.py?'
    assert complaint([wrong]) == text
