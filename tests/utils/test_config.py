"""The tree: nodes and what they accept, building, derived and required settings, showing."""

import copy
import functools
import inspect
import pickle
import threading

import pytest
from config_parts import DGCSGD, SGD, Compressor, Cosine, Momentum, positional_only, settings_of

from utils.config import REQUIRED, REQUIRED_NODE, Config, ConfigError, configs, derived, load


def test_plain_nodes_of_ones_own_are_free():
    mine = Config(a=1)
    mine.b = Config()
    mine.b.c = 2
    assert (mine.a, mine.b.c) == (1, 2)


def test_what_the_function_does_not_accept_is_refused_at_once():
    message = 'SGD.lrr is not a setting of config_parts.SGD; did you mean SGD.lr?'
    with pytest.raises(ConfigError) as caught:
        Config(SGD, lrr=0.1)
    assert str(caught.value) == message


def test_functions_with_keywords_or_without_signature_accept_anything():
    assert Config(settings_of, whatever=1).build() == {'whatever': 1}
    with pytest.raises(ValueError, match='no signature'):
        inspect.signature(type)  # if this stops failing, take another function without one
    assert Config(type, anything=1).anything == 1


def test_partials_accept_what_their_function_accepts():
    node = Config(functools.partial(positional_only, 1))
    node.second = 5
    assert node.build() == (1, 5)
    with pytest.raises(ConfigError, match='is not a setting'):
        node.third = 1


def test_positional_only_parameters_are_passed_at_build():
    assert Config(positional_only, second=3).build(1) == (1, 3)
    with pytest.raises(ConfigError, match='first is not a setting'):
        Config(positional_only, first=1)


def test_parameters_called_like_our_own_are_settings():
    node = Config(settings_of, func=1, self=2, name=3, raw=4)
    assert node.build() == {'func': 1, 'self': 2, 'name': 3, 'raw': 4}
    assert Config(self=1).build() == {'self': 1}


def test_what_cannot_be_called_makes_no_node():
    with pytest.raises(ConfigError, match=r"Config\('SGD'\): the first argument must be callable"):
        Config('SGD')


def test_unset_names_read_as_defaults():
    node = Config(SGD)
    assert node.lr == 0.1
    assert node['betas'] == (0.9, 0.99)
    assert 'lr' not in node
    with pytest.raises(ConfigError, match=r'^SGD\.parameters is not set, and has no default$'):
        _ = node.parameters


def test_a_missing_name_is_also_an_attribute_error():
    node = Config(SGD, lr=1)
    assert hasattr(node, 'lr')
    assert not hasattr(node, 'learning_rate')
    assert not hasattr(node, '__array__')
    assert getattr(node, 'nothing', 7) == 7


def test_required_is_no_attribute_error():
    node = Config(a=REQUIRED)
    with pytest.raises(ConfigError):
        hasattr(node, 'a')


def test_items_and_names():
    node = Config(a=1, b=derived(lambda: node.a + 1))
    assert dict(node.items()) == {'a': 1, 'b': 2}
    assert isinstance(dict(node.items(raw=True))['b'], derived)
    assert list(node) == ['a', 'b']
    assert 'a' in node
    assert 'c' not in node
    assert bool(Config())


@pytest.mark.parametrize('name', ['build', 'using', 'items', 'flat', 'check', '_func', '__init__'])
def test_names_that_config_uses_are_refused(name):
    node = Config()
    for attempt in (
        lambda: node.__setitem__(name, 1),
        lambda: Config(settings_of, **{name: 1}),
    ):
        with pytest.raises(ConfigError, match=rf'\.{name} cannot be a setting'):
            attempt()


@pytest.mark.parametrize('name', ['a.b', 'a=b'])
def test_names_that_no_command_line_could_reach_are_refused(name):
    with pytest.raises(ConfigError, match=r"holds '\.' or '='"):
        Config()[name] = 1


def test_a_node_in_a_second_place_is_a_copy():
    tree = Config(a=Config(SGD, lr=1))
    tree.b = tree.a
    tree.b.lr = 2
    assert (tree.a.lr, tree.b.lr) == (1, 2)
    with pytest.raises(ConfigError, match=r'^Config\.a\.x is not'):
        tree.a.x = 1
    with pytest.raises(ConfigError, match=r'^Config\.b\.x is not'):
        tree.b.x = 1


def test_a_new_node_is_attached_itself():
    node = Config(SGD)
    tree = Config(optimizer=node)
    node.lr = 3
    assert tree.optimizer.lr == 3


def test_using_keeps_what_both_accept():
    tree = Config(base=0.5, optimizer=Config(SGD, nesterov=True, lr=derived(lambda: tree.base)))
    tree.optimizer.momentum = REQUIRED
    tree.optimizer = tree.optimizer.using(DGCSGD)
    assert list(tree.optimizer) == ['lr', 'momentum']
    tree.base = 0.25
    tree.optimizer.momentum = 0.9
    optimizer = tree.optimizer.build('parameters')
    assert type(optimizer) is DGCSGD
    assert (optimizer.lr, optimizer.momentum) == (0.25, 0.9)


def test_using_copies_nested_nodes():
    old = Config(Compressor, memory=Config(Momentum))
    new = old.using(settings_of)
    new.memory.momentum = 0.1
    assert old.memory.momentum == 0.9


def test_copies_are_independent_and_keep_their_meaning():
    tree = Config(a=REQUIRED, b=derived(lambda: 3), c=Config(d=[1]))
    for twin in (copy.copy(tree), copy.deepcopy(tree)):
        assert dict(twin.items(raw=True))['a'] is REQUIRED
        assert twin.b == 3
        twin.c.d.append(2)
        twin.c.e = 5
    assert tree.c.d == [1]
    assert 'e' not in tree.c


def test_required_is_one_object_however_it_travels():
    assert copy.deepcopy([REQUIRED])[0] is REQUIRED
    assert pickle.loads(pickle.dumps(REQUIRED)) is REQUIRED
    assert repr(REQUIRED) == 'REQUIRED'


# ---------------------------------------------------------------- building


def test_build_passes_settings_and_arguments():
    optimizer = Config(SGD, lr=0.5).build(['w'], momentum=0.8)
    assert (optimizer.parameters, optimizer.lr, optimizer.momentum) == (['w'], 0.5, 0.8)


def test_a_keyword_has_precedence_even_over_required():
    node = Config(SGD, lr=REQUIRED, parameters=REQUIRED)
    assert node.build(parameters=1, lr=2).lr == 2
    with pytest.raises(ConfigError, match=r'^SGD\.lr must be set'):
        node.build(parameters=1)


def test_nested_nodes_are_built_first():
    node = Config(Compressor, memory=Config(Momentum, momentum=0.5))
    node.memory.momentum_masking = False
    memory = node.build().memory
    assert type(memory) is Momentum
    assert (memory.momentum, memory.momentum_masking) == (0.5, False)


def test_nodes_in_containers_are_built():
    built = Config(
        settings_of,
        list=[Config(Momentum), 1],
        tuple=(Config(Momentum),),
        dict={'a': [Config(Momentum)]},
        plain=Config(x=Config(Momentum), y=derived(lambda: 2)),
    ).build()
    found = [built['list'][0], built['tuple'][0], built['dict']['a'][0], built['plain']['x']]
    assert [type(memory) for memory in found] == [Momentum] * 4
    assert type(built['plain']) is dict
    assert built['plain']['y'] == 2
    assert built['list'][1] == 1


def test_building_never_writes_to_the_tree():
    def greedy(a, b):
        a.append(1)
        b['x'] = 1
        return a

    tree = Config(f=Config(greedy, a=[0], b=Config(y=[1])))
    before = tree.flat()
    assert tree.f.build() == [0, 1]
    assert tree.f.build() == [0, 1]
    assert tree.flat() == before


def test_errors_of_the_function_itself_pass_through():
    with pytest.raises(TypeError, match='T_max'):
        Config(Cosine).build('optimizer')


# ---------------------------------------------------------------- derived and required


def test_derived_follows_the_tree_until_it_is_set(resnet20):
    load(resnet20, ['--configs.train.num_epochs', '500'])
    assert configs.train.scheduler.T_max == 495
    assert configs.train.scheduler.build('optimizer').T_max == 495
    configs.train.warmup_lr_epochs = 10
    assert configs.train.scheduler.T_max == 490
    configs.train.scheduler.T_max = 3
    assert configs.train.scheduler.build('optimizer').T_max == 3


def test_a_derived_node_is_built():
    tree = Config(a=Config(Momentum), f=Config(settings_of, memory=derived(lambda: tree.a)))
    assert type(tree.f.build()['memory']) is Momentum


def test_a_cycle_is_named():
    tree = Config(a=derived(lambda: tree.b.c), b=Config())
    tree.b.c = derived(lambda: tree.a + 1)
    message = 'Config.a is derived from itself: Config.a -> Config.b.c -> Config.a'
    for attempt in (lambda: tree.a, tree.flat, tree.check, tree.build):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert str(caught.value) == message
    tree.b.c = 1  # and the chain is forgotten once it is broken
    assert tree.a == 1


def test_reading_in_many_threads_is_no_cycle():
    barrier, seen = threading.Barrier(4, timeout=10), []

    def slow():
        barrier.wait()  # all four threads are inside this setting now
        return 1

    tree = Config(a=derived(slow))
    threads = [threading.Thread(target=lambda: seen.append(tree.a)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 4


def test_a_derived_setting_that_fails_is_named():
    tree = Config(a=None, b=derived(lambda: tree.a - 1))
    with pytest.raises(ConfigError, match=r'^Config\.b cannot be computed: TypeError: unsupported'):
        _ = tree.b
    tree.b = derived(lambda: tree.a.real_name)  # an AttributeError must not read as "not there"
    with pytest.raises(ConfigError, match=r'^Config\.b cannot be computed: AttributeError'):
        hasattr(tree, 'b')


def test_required_names_itself_also_through_derived(stack):
    load([stack / 'dgc/wm5.py'])
    message = (
        'configs.train.num_epochs must be set'
        ' (in a config file, or --configs.train.num_epochs VALUE)'
    )
    scheduler = configs.train.scheduler
    for attempt in (
        lambda: configs.train.num_epochs,
        lambda: scheduler.T_max,
        lambda: scheduler.build(1),
        configs.check,
        configs.flat,
    ):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert str(caught.value) == message


def test_check_names_every_required_setting():
    tree = Config(a=REQUIRED, b=Config(SGD, lr=REQUIRED), c=[Config(SGD, momentum=REQUIRED)])
    with pytest.raises(ConfigError) as caught:
        tree.check()
    names = 'Config.a, Config.b.lr, Config.c.momentum'
    text = f'{names} must be set (in a config file, or --Config.a VALUE)'
    assert str(caught.value) == text
    tree.a, tree.b.lr, tree.c[0].momentum = 1, 2, 3
    tree.check()


def test_check_finds_a_derived_setting_that_cannot_be_computed():
    tree = Config(a=Config(b=derived(lambda: 1 / 0)))
    with pytest.raises(ConfigError, match=r'^Config\.a\.b cannot be computed: ZeroDivisionError'):
        tree.check()


# ---------------------------------------------------------------- showing


def test_flat_and_text(resnet20):
    load(resnet20)
    assert configs.flat() == {
        'configs.seed': 42,
        'configs.name': 'run',
        'configs.note': None,
        'configs.train.num_epochs': 200,
        'configs.train.warmup_lr_epochs': 5,
        'configs.train.nesterov': False,
        'configs.train.base_lr': 0.1,
        'configs.train.milestones': [1, 2],
        'configs.train.meters.acc/{}_top1': 'config_parts.settings_of',
        'configs.train.meters.acc/{}_top1.k': 1,
        'configs.train.optimizer': 'config_parts.SGD',
        'configs.train.optimizer.momentum': 0.9,
        'configs.train.scheduler': 'config_parts.Cosine',
        'configs.train.scheduler.T_max': 195,
        'configs.train.compression': 'config_parts.Compressor',
        'configs.train.compression.memory': 'config_parts.Momentum',
        'configs.dataset': 'config_parts.settings_of',
        'configs.dataset.classes': 10,
    }
    lines = str(configs).splitlines()
    assert len(lines) == len(configs.flat())
    assert "configs.name = 'run'" in lines
    assert 'configs.train.optimizer = config_parts.SGD' in lines
    assert str(configs.train.scheduler).splitlines()[1] == 'configs.train.scheduler.T_max = 195'


def test_functions_are_shown_by_name_also_in_containers():
    tree = Config(
        f=SGD,
        g=[len, {'x': Config(SGD, lr=derived(lambda: 1), betas=[SGD])}],
        h=Config(functools.partial(SGD)),
    )
    name = 'config_parts.SGD'
    assert str(tree).splitlines() == [
        f'Config.f = {name}',
        f"Config.g = [builtins.len, {{'x': {name}(lr=1, betas=[{name}])}}]",
        'Config.h = functools.partial',
    ]


def test_repr_reads_nothing():
    tree = Config(a=Config(SGD, lr=REQUIRED))
    assert repr(tree.a) == '<Config Config.a>'


@pytest.mark.parametrize('value', [SGD, 'SGD', 3, [1]])
def test_what_is_built_cannot_be_replaced_by_what_is_not(value):
    tree = Config(a=REQUIRED_NODE, b=Config(SGD), c=Config(d=1), e=REQUIRED)
    for name in ('a', 'b'):
        with pytest.raises(ConfigError, match=rf'^Config\.{name} = .*give it a Config\(function'):
            tree[name] = value
    tree.c, tree.e = value, value  # any value will do
    tree.b, tree.a = None, Config(SGD)
    assert tree.b is None and tree.a.build(1).lr == SGD(1).lr


def test_a_node_is_not_to_be_given_on_the_command_line():
    with pytest.raises(ConfigError) as caught:
        Config(a=REQUIRED_NODE).check()
    assert str(caught.value) == 'Config.a must be set (in a config file)'
