"""The command line: which text becomes which value, and what is refused."""

import ast
from pathlib import Path
from typing import Any

import config_parts
import pytest
from config_parts import SGD, complaint
from hypothesis import given
from hypothesis import strategies as st

from utils.config import Config, ConfigError, configs, load, names_of_settings


def load_x(stack: Path, value: Any, *overrides: str) -> Any:
    """configs.x as a stack leaves it which declares it to be `value`."""
    config_parts.VALUE = value
    return load([stack / 'value/__init__.py'], overrides).x


@pytest.mark.parametrize(
    ('words', 'name', 'value'),
    [
        (['--configs.seed', '1'], 'seed', 1),
        (['--configs.seed=1'], 'seed', 1),
        (['--configs.seed', '-1'], 'seed', -1),
        (['--configs.seed=-1'], 'seed', -1),
        (['--configs.seed', '1', '--configs.seed', '2'], 'seed', 2),
        (['--configs.name', 'other'], 'name', 'other'),
        (['--configs.name', "'12'"], 'name', '12'),
        (['--configs.name=a=b'], 'name', 'a=b'),
        (['--configs.name='], 'name', ''),
        (['--configs.name=--x'], 'name', '--x'),
        (['--configs.note', 'free text'], 'note', 'free text'),
        (['--configs.note', '3'], 'note', 3),
        (['--configs.note', 'None'], 'note', None),
        (['--configs.train.nesterov', 'True'], 'train.nesterov', True),
        (['--configs.train.base_lr', '1'], 'train.base_lr', 1.0),
        (['--configs.train.base_lr', '1', '--configs.train.base_lr=.5'], 'train.base_lr', 0.5),
        (['--configs.train.base_lr', '1e-3'], 'train.base_lr', 0.001),
        (['--configs.train.milestones', '[3]'], 'train.milestones', [3]),
        (['--configs.train.milestones', '(3, 4)'], 'train.milestones', [3, 4]),
        (['--configs.train.optimizer.lr=0.05'], 'train.optimizer.lr', 0.05),
        (['--configs.train.optimizer.betas', '[0, 1]'], 'train.optimizer.betas', (0, 1)),
        (['--configs.train.optimizer.foreach', 'True'], 'train.optimizer.foreach', True),
        (['--configs.train.optimizer.parameters', 'any'], 'train.optimizer.parameters', 'any'),
        (['--configs.train.meters.acc/{}_top1.k', '5'], 'train.meters.acc/{}_top1.k', 5),
        (['--configs.train.meters.acc/{}_top1.new', 'x'], 'train.meters.acc/{}_top1.new', 'x'),
        (['--configs.train.scheduler.T_max', '3'], 'train.scheduler.T_max', 3),
        (['--configs.train.scheduler', 'None'], 'train.scheduler', None),
        (['--configs.train.compression.memory.momentum_masking', 'False'],
         'train.compression.memory.momentum_masking', False),
    ],
)  # fmt: skip
def test_overrides(resnet20, words, name, value):
    load(resnet20, words)
    found: Any = configs
    for part in name.split('.'):
        found = found[part]
    assert found == value
    assert type(found) is type(value)


def test_the_names_of_a_stack_are_those_that_may_be_set(resnet20):
    names = names_of_settings(resnet20)
    there = ['seed', 'train.optimizer', 'train.optimizer.foreach']
    there += ['train.compression.memory.momentum_masking']
    assert {f'configs.{name}' for name in there} < names
    assert not names & {'configs.sead', 'configs.train.optimizer.nosuch'}


def test_an_int_default_of_a_float_parameter_takes_a_float(stack):
    node = Config(SGD)  # momentum: float = 0, as in torch.optim.SGD
    assert type(node.momentum) is int
    assert load_x(stack, node, '--configs.x.momentum', '0.9').momentum == 0.9


def test_none_returns_to_a_default_of_none(stack):
    node = Config(SGD, foreach=True)
    assert load_x(stack, node, '--configs.x.foreach', 'None').foreach is None


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--configs.train.warmup_lr_epochs', 'five'],
         "configs.train.warmup_lr_epochs = 'five': expected int, got str"),
        (['--configs.train.num_epochs', '1.5'],
         'configs.train.num_epochs = 1.5: expected int, got float'),
        (['--configs.seed', 'True'], 'configs.seed = True: expected int, got bool'),
        (['--configs.seed', 'None'], 'configs.seed = None: expected int, got NoneType'),
        (['--configs.train.base_lr', 'True'],
         'configs.train.base_lr = True: expected float, got bool'),
        (['--configs.train.nesterov', '1'],
         'configs.train.nesterov = 1: expected bool, got int'),
        (['--configs.train.nesterov', 'true'],
         "configs.train.nesterov = 'true': expected bool, got str"),
        (['--configs.name', '1_1_1'], 'configs.name = 111: expected str, got int; '
         'quote it twice to give a string: "\'1_1_1\'"'),  # docs/failures.md, row 18
        (['--configs.train.milestones', '3'],
         'configs.train.milestones = 3: expected list, got int'),
        (['--configs.train.optimizer.nesterov', '0'],
         'configs.train.optimizer.nesterov = 0: expected bool, got int'),
        (['--configs.train.scheduler.T_max', 'x'],
         "configs.train.scheduler.T_max = 'x': expected int, got str"),
        (['--configs.train.scheduler', 'cosine'],
         "configs.train.scheduler = 'cosine': it is a node; set its settings, not itself"),
        (['--configs.train.scheduler', 'False'],
         'configs.train.scheduler = False: it is a node; set its settings, not itself'),
        (['--configs.train', 'None'],
         'configs.train = None: it is a node; set its settings, not itself'),
        (['--configs.train.num_epoch', '5'],
         'configs.train.num_epoch is not a setting; did you mean configs.train.num_epochs?'),
        (['--configs.trian.num_epochs', '5'],
         'configs.trian is not a setting; did you mean configs.train?'),
        (['--configs.train.optimizer.lrr', '5'],
         'configs.train.optimizer.lrr is not a setting of config_parts.SGD;'
         ' did you mean configs.train.optimizer.lr?'),
        (['--configs.zzz', '5'], 'configs.zzz is not a setting'),
        (['--configs.', '5'], 'configs. is not a setting'),
        (['--configs.seed.x', '5'], 'configs.seed is 42, which has no settings'),
        (['--configs.train.scheduler', 'None', '--configs.train.scheduler.T_max', '3'],
         'configs.train.scheduler is None, which has no settings'),
        (['--configs.seed'], 'argument --configs.seed needs a value'),
        (['--configs.seed', '--configs.name', 'x'], 'argument --configs.seed needs a value'),
        (['--suffx', '.e500'], 'unknown argument --suffx; did you mean --suffix?'),
        (['--suffx=.e500'], 'unknown argument --suffx; did you mean --suffix?'),
        (['--config.seed', '1'], 'unknown argument --config.seed; did you mean --configs.seed?'),
        (['stray'], 'unknown argument stray'),
    ],
)  # fmt: skip
def test_overrides_refused(resnet20, words, message):
    assert complaint(resnet20, words, known=['--configs', '--suffix', '--resume']) == message


def test_a_derived_setting_that_cannot_be_computed_takes_any_value(stack):
    load([stack / 'dgc/wm5.py'], ['--configs.train.scheduler.T_max', '1.5'])
    assert configs.train.scheduler.T_max == 1.5


def test_values_are_never_evaluated(resnet20, tmp_path):
    marker = tmp_path / 'executed'
    code = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    load(resnet20, ['--configs.name', code])
    assert configs.name == code
    assert not marker.exists()


def is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
literals = st.recursive(
    scalars.filter(lambda value: value not in (float('inf'), float('-inf'))),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(literals)
def test_literals_round_trip_through_overrides(shared_stack, value):
    word = f'--configs.x={value!r}'
    found = load_x(shared_stack, None, word, word)  # the second is checked against the first
    assert found == value
    assert type(found) is type(value)


@given(st.text().filter(lambda text: not is_literal(text)))
def test_text_round_trips_through_overrides(shared_stack, text):
    assert load_x(shared_stack, 'a string', f'--configs.x={text}') == text


@given(scalars, scalars)
def test_an_override_keeps_the_type_or_is_refused(shared_stack, old, new):
    try:
        load_x(shared_stack, old, f'--configs.x={new!r}')
    except ConfigError as error:
        assert 'expected' in str(error)
        assert type(old) is not type(new) or new in (float('inf'), float('-inf'))
        assert configs.x == old
    else:
        assert old is None or type(configs.x) is type(old)
