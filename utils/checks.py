"""Values and combinations of settings that are refused before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dgc import Composition
from dgc.parameter_server import Asynchronous
from utils.config import Config, ConfigError, blame
from utils.config.describe import function_name, function_of
from utils.loading import START_METHODS
from utils.precision import PRECISIONS
from utils.training.averaging import EveryStep
from utils.training.pushing import AsynchronousOuterSteps

# The least value of each setting that is a whole number.
LEAST = {
    'data.num_threads_per_worker': 1,
    'data.num_workers': 0,
    'train.num_epochs': 1,
    'train.batch_size': 1,
    'train.num_batches_per_step': 1,
    'train.warmup_lr_epochs': 0,
}

MAX_SEED = 2**53  # with which no epoch's seed exceeds the 64 bits of torch

# Those for which None stands for a number that is found out.
FOUND_OUT = ('data.num_threads_per_worker', 'data.num_workers')

# Settings that None turns off, for modes of training which do not have them.
SAVED_WITHIN_EPOCHS = ('checkpoint.every_steps', 'checkpoint.every_minutes')
ROLLBACK = ('rollback.after_skips',)
OWN_LOADER = ('data.loader',)
AGREEMENT = ('agreement',)
ABORT = ('engine.abort_seconds',)
MEAN = ('train.clip_mean', 'train.ema')  # of the gradient and of the weights of all ranks
STEPS = ('train.num_steps',)
TRACE = ('log.trace_steps',)
LOGGED = ('log.histogram_steps', 'log.selection_steps', *TRACE)

LIMITS = ('max_norm', 'clip_value')  # of torch's functions that clip gradients
AXES = ('samples', 'steps')  # that TensorBoard's Step may count
MIN_MINUTES = 0.001  # between checkpoints

# Settings of deep_gradient_compression that do nothing where no codec is involved, and where
# another compressor or the exchange selects.
CODINGS = ('values', 'indices', 'fp16_values', 'int32_indices')
SAMPLING = (
    *('sample_ratio', 'strided_sample', 'compress_upper_bound'),
    *('compress_lower_bound', 'max_adaptation_iters', 'resample'),
)


def check_settings(configs: Config) -> None:
    """Raise ConfigError for a number that cannot be meant, and for settings without effect."""
    for path, least in LEAST.items():
        section, name = path.split('.')
        value = configs[section][name]
        if value is not None or path not in FOUND_OUT:
            check_number(f'configs.{path}', value, least, int)
    check_data(configs.data)
    check_pipeline(configs.engine.pipeline)
    check_checkpoint(configs.checkpoint)
    check_log(configs.log)
    check_rollback(configs)
    check_training(configs)
    if not isinstance(configs.seed, int):
        raise ConfigError(
            f'configs.seed = {configs.seed!r}: a run needs a number, by which its ranks agree on '
            'the order of the data; give each run another one where it should differ'
        )
    if abs(configs.seed) > MAX_SEED:
        raise ConfigError(f'configs.seed = {configs.seed}: choose from {-MAX_SEED} to {MAX_SEED}')
    optimizer = configs.train.optimizer
    if 'lr' in optimizer:
        check_number('configs.train.optimizer.lr', optimizer.lr, 0, float)
    for path in ('optimizer', 'criterion', 'compression', 'averaging', 'distribution'):
        check_node(f'configs.train.{path}', configs.train[path])
    if configs.train.scheduler is not None:
        check_node('configs.train.scheduler', configs.train.scheduler)
        if function_of(configs.train.scheduler) is ReduceLROnPlateau:
            raise ConfigError(
                'configs.train.scheduler = ReduceLROnPlateau follows a metric, and the rate here '
                'is a function of the step, also after a resume: choose one that follows steps'
            )
    for name, meter in configs.train.meters.items():
        if meter is not None:
            check_node(f'configs.train.meters.{name}', meter)


def check_training(configs: Config) -> None:
    """Raise ConfigError for a way of computing or averaging that there is not."""
    train = configs.train
    if train.precision not in PRECISIONS:
        why = ', which needs a loss that is scaled' if train.precision == 'fp16' else ''
        raise ConfigError(
            f'configs.train.precision = {train.precision!r}{why}: it is one of '
            f'{", ".join(PRECISIONS)} (docs/mixed-precision.md has a loop of your own for fp16)'
        )
    for name in ('scale_lr', 'recompute'):
        if not isinstance(train[name], bool):
            raise ConfigError(f'configs.train.{name} = {train[name]!r}: expected bool')
    if train.num_steps is not None:
        check_number('configs.train.num_steps', train.num_steps, 1, int)
    if train.ema is not None:
        check_number('configs.train.ema', train.ema, 0, float)
        if not 0 < train.ema < 1:
            raise ConfigError(f'configs.train.ema = {train.ema}: it is above 0 and below 1')
    if train.clip_mean is not None:
        check_clipping(train.clip_mean)
    if train.compile is not None and train.compile not in torch.compiler.list_backends(()):
        known = ', '.join(torch.compiler.list_backends(()))
        raise ConfigError(f'configs.train.compile = {train.compile!r}: this torch has {known}')
    if isinstance(configs.pretrained.skip, str):
        raise ConfigError(
            f'configs.pretrained.skip = {configs.pretrained.skip!r}: give it several patterns, '
            f'such as "[\'{configs.pretrained.skip}\']"'
        )
    averaging = function_name(train.averaging)
    if averaging != EveryStep.__name__:
        check_none(configs, MEAN, f'{averaging}, whose ranks hold parameters of their own')


def check_clipping(node: Any) -> None:
    """Raise ConfigError for a clipping of the mean that cannot be called, or whose limit turns
    gradients round."""
    check_node('configs.train.clip_mean', node)
    for name in LIMITS:
        if name in node and isinstance(node[name], int | float) and not node[name] > 0:
            raise ConfigError(f'{node._path()}.{name} must be above 0, got {node[name]}')
    with naming(node), suppress(ValueError):  # of a function in C, which has no signature
        inspect.signature(function_of(node) or dict).bind((), **dict(node.items()))


def check_data(settings: Config) -> None:
    """Raise ConfigError for ways of loading data that there are not."""
    method = settings.start_method
    if method not in (None, *START_METHODS):
        names = ', '.join(START_METHODS)
        raise ConfigError(f'configs.data.start_method = {method!r}: it is one of {names}')
    if not isinstance(settings.channels_last, bool):
        raise ConfigError(f'configs.data.channels_last = {settings.channels_last!r}: expected bool')
    if settings.loader is not None:
        check_node('configs.data.loader', settings.loader)


def check_pipeline(pipeline: object) -> None:
    """Raise ConfigError for anything else than True, False and None."""
    if pipeline not in (True, False, None):
        raise ConfigError(
            f'configs.engine.pipeline = {pipeline!r}: it is True, False, or None for True where a '
            'worker has two cores'
        )


def check_log(settings: Config) -> None:
    """Raise ConfigError for an axis that there is not, or a period that cannot be meant."""
    if settings.axis not in AXES:
        raise ConfigError(f'configs.log.axis = {settings.axis!r}: it is one of {", ".join(AXES)}')
    for name in ('histogram_steps', 'selection_steps'):
        if settings[name] is not None:
            check_number(f'configs.log.{name}', settings[name], 1, int)
    if settings.trace_steps is not None:
        check_steps('configs.log.trace_steps', settings.trace_steps)


def check_steps(path: str, value: Any) -> None:
    """Raise ConfigError for anything else than the first and the last one of some steps."""
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    if not is_pair or not all(type(each) is int for each in value) or not 0 <= value[0] <= value[1]:
        raise ConfigError(
            f'{path} = {value!r}: give it the first and the last step, counted from 0, such as '
            '"(100, 109)"'
        )


def check_checkpoint(settings: Config) -> None:
    """Raise ConfigError for intervals between checkpoints that cannot be meant."""
    if settings.every_steps is not None:
        check_number('configs.checkpoint.every_steps', settings.every_steps, 1, int)
    if settings.every_minutes is not None:
        check_number('configs.checkpoint.every_minutes', settings.every_minutes, MIN_MINUTES, float)
    if settings.keep_epochs is not None:
        check_number('configs.checkpoint.keep_epochs', settings.keep_epochs, 1, int)
    if settings.most_growth is not None:
        check_number('configs.checkpoint.most_growth', settings.most_growth, 1, float)


def check_rollback(configs: Config) -> None:
    """Raise ConfigError for settings of rollbacks and of ``agreement`` that cannot be meant."""
    settings = configs.rollback
    if settings.after_skips is not None:
        check_number('configs.rollback.after_skips', settings.after_skips, 1, int)
    check_number('configs.rollback.times', settings.times, 1, int)
    check_number('configs.rollback.lr_factor', settings.lr_factor, 0, float)
    if not 0 < settings.lr_factor <= 1:
        raise ConfigError(
            f'configs.rollback.lr_factor = {settings.lr_factor}: expected a number above 0, and at '
            'most 1'
        )
    if configs.agreement is not None:
        check_number('configs.agreement', configs.agreement, 1, int)


def check_number(path: str, value: Any, least: float, kind: type) -> None:
    """Raise ConfigError for a value that is not a number of this kind, or is below ``least``."""
    kinds = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigError(f'{path} = {value!r}: expected {kind.__name__}')
    if not value >= least:
        raise ConfigError(f'{path} must be at least {least}, got {value}')


def check_node(path: str, value: Any) -> None:
    """Raise ConfigError for a value that builds nothing."""
    if not isinstance(value, Config):
        shown = getattr(value, '__name__', repr(value))
        raise ConfigError(f'{path} = {shown}: give it a Config(function, …), in a config file')


def check_synchronous(configs: Config) -> None:
    """Raise ConfigError for settings of a server or of elastic workers, which synchronous training
    does not have."""
    check_unset(configs, 'server', 'synchronous training has no server', 'a file of configs/dgs/')
    reason = 'the number of workers is fixed in synchronous training'
    check_unset(configs, 'elastic', reason, 'configs/elastic/torchft.py')
    if configs.engine.name == 'torchft':
        raise ConfigError(
            'configs.engine.name = torchft is for workers that may die and join: add '
            'configs/elastic/torchft.py to --configs'
        )


def check_unset(configs: Config, section: str, reason: str, remedy: str) -> None:
    """Raise ConfigError where a setting of ``section`` is not its default."""
    for name, value in configs[section].items():
        if value != configs[section]._parameters[name].default:
            raise ConfigError(
                f'configs.{section}.{name} is set, and {reason}: add {remedy} to --configs'
            )


def check_none(configs: Config, names: Iterable[str], reason: str) -> None:
    """Raise ConfigError where a setting is not None.

    Args:
        configs: All settings.
        names: Of settings, each with its section where it is in one.
        reason: With what a setting has no effect, and why.
    """
    for name in names:
        section, _, last = name.rpartition('.')
        value = (configs[section] if section else configs)[last]
        if value is not None:
            raise ConfigError(f'configs.{name} = {value!r} has no effect with {reason}')


def check_elastic(configs: Config) -> None:
    """Raise ConfigError for what workers that may die and join do not have."""
    if configs.engine.name not in (None, 'torchft'):
        raise ConfigError(
            f'configs.engine.name = {configs.engine.name} does not fit configs/elastic/: leave it '
            'out'
        )
    check_unset(configs, 'server', 'elastic workers have no server', 'a file of configs/dgs/')
    for names, reason in (
        (ROLLBACK, 'which go on with those that are left, and not from a checkpoint'),
        (ABORT, 'which drop others after configs.elastic.drop_seconds'),
        ((*AGREEMENT, *MEAN), 'whose steps are confirmed by a vote'),
        (STEPS, 'whose epochs have more or fewer steps as workers die and join'),
        (OWN_LOADER, 'whose shares of the data change when workers join or die'),
        (TRACE, 'which may join and die within it'),
    ):
        check_none(configs, names, f'elastic workers, {reason}')
    averaging = function_name(configs.train.averaging)
    if averaging != EveryStep.__name__:
        raise ConfigError(
            f'configs.train.averaging = {averaging} does not work with configs/elastic/, since '
            'between two rounds workers hold parameters of their own: leave one of the two out'
        )


def check_asynchronous(configs: Config) -> None:
    """Raise ConfigError for a composition or for local steps that a parameter server cannot use."""
    build_composition(configs, Asynchronous)
    together = 'whose workers make no steps together'
    for names, reason in (
        (LOGGED, 'whose workers write no files'),
        (SAVED_WITHIN_EPOCHS, 'which saves one every configs.server.checkpoint_seconds'),
        (ROLLBACK, together),
        (AGREEMENT, together),
        ((*MEAN, *STEPS), together),
    ):
        check_none(configs, names, f'a parameter server, {reason}')
    averaging = function_name(configs.train.averaging)
    if averaging not in (EveryStep.__name__, AsynchronousOuterSteps.__name__):
        mode = function_name(configs.train.distribution)
        raise ConfigError(
            f'configs.train.averaging = {averaging} has no effect with a parameter server'
            f'{blame(configs.train, f"{averaging} {mode}")}: leave one of the two out'
        )
    with naming(configs.train.averaging):
        configs.train.averaging.build()


@contextmanager
def naming(node: Config) -> Iterator[None]:
    """Raise a ConfigError for a ValueError or TypeError about ``node`` in the block.

    It names the node, and the files or the command line that set what the error is about.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        text = str(error)
        raise ConfigError(f'{node._path()}: {text}{blame(node, text)}') from error


def build_composition(configs: Config, kind: type | None = None) -> Any:
    """Build ``configs.train.compression``.

    Args:
        configs: The configuration.
        kind: The class of compositions that the training mode works with; None for Composition.

    Raises:
        ConfigError: Where the parts do not fit each other, or the composition is of another kind.
    """
    kind, node = kind or Composition, configs.train.compression
    with naming(node):
        composition = node.build()
    if not isinstance(composition, kind):
        function, mode = function_name(node), function_name(configs.train.distribution)
        raise ConfigError(
            f'configs.train.distribution = {mode} works with a composition of class '
            f'{kind.__name__}, and configs.train.compression = {function} makes one of class '
            f'{type(composition).__name__}{blame(configs.train, f"{function} {mode}")}: '
            'leave one of the two out'
        )
    if isinstance(composition, Composition):
        check_effect(node, composition)
        check_mean(configs, composition)
    return composition


def check_mean(configs: Config, composition: Composition) -> None:
    """Raise ConfigError where the mean that is to be clipped is none of gradients."""
    train, memory = configs.train, composition.memory
    if train.clip_mean is None or memory.sends_gradients:
        return
    name = type(memory).__name__
    raise ConfigError(
        f'configs.train.clip_mean = {function_name(train.clip_mean)} clips the mean gradient, and '
        f'{name} sends momenta, which are up to 1/(1 - momentum) times as large'
        f'{blame(configs.train, f"clip_mean {name}")}: clip gradients before the exchange '
        'in its place, with configs/clip/local_norm.py or local_value.py'
    )


def check_effect(node: Config, composition: Composition) -> None:
    """Raise ConfigError for a setting of ``node`` that does nothing in its composition."""
    compressor, exchange = composition.compressor, composition.exchange
    unused: dict[str, str] = {}  # by setting: why
    if exchange.writes(compressor.payload) is None:
        reason = f'{type(exchange).__name__} sums float32 values, without a codec'
        unused = dict.fromkeys(CODINGS, reason)
    if exchange.selects or ('compressor' in node and node['compressor'] is not None):
        selecting = type(exchange if exchange.selects else compressor).__name__
        unused |= dict.fromkeys(SAMPLING, f'{selecting} selects, with settings of its own')
    for name, reason in unused.items():
        if name in node and node[name] != node._parameters[name].default:
            files = blame(node, f'{name} {reason}')
            raise ConfigError(
                f'{node._path(name)} = {node[name]!r} has no effect, since {reason}{files}: '
                'leave it out'
            )
