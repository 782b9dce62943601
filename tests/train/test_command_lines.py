"""The published command lines, as written, and what they come to; every file of configs/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from launching import ROOT
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR

import dgc
from dgc.codec import Codec
from dgc.compressors import SampledTopK
from dgc.exchanges import AllGather
from dgc.memory import MomentumCorrection
from utils.build import parameter_groups
from utils.cli import parse_arguments
from utils.config import Config, load
from utils.config.loading import parse_overrides
from utils.naming import by_setting, run_name

FILES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / 'configs').rglob('[!_]*.py'))


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(ROOT)
    yield
    load([])


def parse(line: str) -> Config:
    """The resolved configuration of what is written after ``python train.py``."""
    arguments, overrides = parse_arguments(line.split())
    configs = load(arguments.configs, overrides)
    configs.check()
    return configs


def name(line: str, size: int) -> str:
    arguments, words = parse_arguments(line.split())
    overrides = by_setting(parse_overrides(words))
    return run_name(arguments.configs, arguments.suffix, size, overrides)


def ratios(configs: Config, epochs: int) -> list[float | None]:
    """The ratio of each epoch's first and last step, which are the same; None: uncompressed."""
    schedule = configs.train.compression.build().schedule
    found = []
    for epoch in range(epochs):
        first, last = schedule.at(100 * epoch, 100), schedule.at(100 * epoch + 99, 100)
        assert first == last
        found.append(first)
    return found


WM5 = [0.001 ** (epoch / 6) for epoch in range(1, 6)] + [0.001]
RESNET20 = (
    '--configs configs/cifar/resnet20.py configs/dgc/wm5.py configs/dgc/fp16.py '
    'configs/dgc/int32.py --configs.train.num_epochs 500 --suffix .e500'
)


def test_the_published_cifar_line():
    configs = parse(RESNET20)
    train, composition = configs.train, configs.train.compression.build()
    assert name(RESNET20, 8) == 'cifar.resnet20+dgc.wm5,fp16,int32.e500@num_epochs=500.np8'
    assert ratios(configs, 8) == pytest.approx([*WM5, 0.001, 0.001])
    assert ratios(configs, 6)[:5] == pytest.approx([0.316, 0.1, 0.032, 0.01, 0.0032], rel=0.02)
    assert vars(composition.codec) == vars(Codec('fp16', 'int32'))
    assert isinstance(composition.compressor, SampledTopK)
    assert isinstance(composition.exchange, AllGather)
    assert isinstance(composition.memory, MomentumCorrection)
    assert composition.memory.momentum_masking
    assert train.num_epochs == 500 and train.batch_size == 128
    assert train.warmup_lr_epochs == 5 and train.schedule_lr_per_epoch
    assert train.scheduler._func is CosineAnnealingLR
    assert train.scheduler.T_max == 495
    assert train.optimizer._func is dgc.DGCSGD
    optimizer = {'momentum': 0.9, 'lr': 0.1, 'weight_decay': 1e-4}
    assert dict(train.optimizer.items()) == optimizer
    assert configs.seed == 42 and train.num_batches_per_step == 1
    assert list(train.meters) == ['acc/{}_top1', 'acc/{}_top5']
    assert train.metric == 'acc/test_top1'
    assert sum(p.numel() for p in configs.model.build().parameters()) in range(269_000, 273_000)


def optimizer_of(configs: Config) -> torch.optim.Optimizer:
    """The optimizer of a small model with BatchNorm under a configuration."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    train = configs.train
    groups = parameter_groups(model, train.optimize_bn_separately)
    return train.optimizer.build(groups, lr=train.optimizer.lr)


@pytest.mark.parametrize('file', ['wm0', 'wm5'])
def test_the_published_imagenet_resnet50(file):
    configs = parse(
        f'--configs configs/imagenet/resnet50.py configs/imagenet/cosine.py configs/dgc/{file}.py'
    )
    train = configs.train
    assert ratios(configs, 7) == pytest.approx([0.001] * 7 if file == 'wm0' else [*WM5, 0.001])
    assert train.scheduler._func is CosineAnnealingLR and train.scheduler.T_max == 85
    assert (train.num_epochs, train.batch_size, train.optimizer.lr) == (90, 32, 0.0125)
    assert train.optimize_bn_separately
    assert configs.model.zero_init_residual and configs.model.num_classes == 1000
    optimizer = optimizer_of(configs)
    assert type(optimizer) is dgc.DGCSGD
    common, norms = optimizer.param_groups
    assert (common['weight_decay'], norms['weight_decay']) == (1e-4, 0.0)
    assert all(group['nesterov'] and group['momentum'] == 0.9 for group in (common, norms))
    codec = train.compression.build().codec
    assert vars(codec) == vars(Codec('fp32', 'int64'))


def test_the_published_imagenet_vgg16_bn_and_resnet18():
    vgg = parse('--configs configs/imagenet/vgg16_bn.py configs/dgc/wm5.py configs/dgc/fp16.py')
    assert vgg.train.scheduler._func is MultiStepLR
    assert list(vgg.train.scheduler.milestones) == [25, 55, 75]  # epochs 30, 60, 80
    assert vgg.train.scheduler.gamma == 0.1
    assert vgg.train.optimizer.weight_decay == 5e-5
    assert not vgg.train.optimize_bn_separately
    (group,) = optimizer_of(vgg).param_groups
    assert (group['nesterov'], group['weight_decay']) == (False, 5e-5)
    small = parse('--configs configs/imagenet/resnet18.py configs/dgc/wm5.py')
    assert (small.train.batch_size, small.train.optimizer.lr) == (64, 0.025)


def test_the_published_cifar_resnet110_in_its_variants():
    base = '--configs configs/cifar/resnet110.py'
    dense_first = parse(f'{base} configs/dgc/wm5o.py')
    assert ratios(dense_first, 7) == [None] * 5 + [0.001, 0.001]
    paper = parse(f'{base} configs/dgc/wm5p.py')
    assert ratios(paper, 6) == [0.25, 0.063, 0.016, 0.004, 0.001, 0.001]
    for file, masked in {'mm': True, 'nm': False}.items():
        configs = parse(f'{base} configs/dgc/wm5.py configs/dgc/{file}.py')
        assert configs.train.compression.build().memory.momentum_masking is masked
    assert vars(parse(f'{base} configs/dgc/int32.py').train.compression.build().codec) == vars(
        Codec('fp32', 'int32')
    )


@pytest.mark.parametrize(
    ('files', 'codec'),
    [
        (['packed'], ('fp32', 'packed')),
        (['int8', 'packed'], ('int8', 'packed')),
        (['packed', 'int4'], ('int4', 'packed')),
        (['bf16', 'int32'], ('bf16', 'int32')),
        (['fp16', 'packed'], ('fp16', 'packed')),
    ],
    ids=str,
)
def test_files_of_codings_go_together(files, codec):
    stack = ' '.join(f'configs/dgc/{file}.py' for file in files)
    composition = parse(f'--configs configs/digits/cnn.py {stack}').train.compression.build()
    assert vars(composition.codec) == vars(Codec(*codec))


def test_two_files_for_one_part_of_a_message_are_refused():
    configs = parse('--configs configs/digits/cnn.py configs/dgc/fp16.py configs/dgc/int8.py')
    with pytest.raises(ValueError, match='leave out fp16_values'):
        configs.train.compression.build()


@pytest.mark.parametrize(
    ('override', 'ratio'), [('0.01', 0.01), ('100', 0.01), ('1.0', None), ('0.25', 0.25)]
)
def test_a_ratio_may_be_given_either_way_up(override, ratio):
    configs = parse(
        '--configs configs/digits/cnn.py configs/dgc/wm0.py '
        f'--configs.train.compression.compress_ratio {override}'
    )
    assert ratios(configs, 1) == [ratio if ratio is None else pytest.approx(ratio)]


def test_names_that_people_know_are_settings():
    words = {
        'compression.compress_ratio': '0.01', 'compression.sample_ratio': '0.1',
        'compression.strided_sample': 'False', 'compression.compress_upper_bound': '1.5',
        'compression.compress_lower_bound': '0.7', 'compression.max_adaptation_iters': '3',
        'compression.resample': 'False', 'compression.fp16_values': 'True',
        'compression.int32_indices': 'True', 'compression.warmup_epochs': '4',
        'compression.warmup_coeff': '0.5', 'compression.memory.momentum_masking': 'False',
        'num_batches_per_step': '4', 'optimize_bn_separately': 'True', 'optimizer.nesterov': 'True',
        'optimizer.lr': '0.5', 'optimizer.weight_decay': '0.1', 'optimizer.momentum': '0.8',
        'schedule_lr_per_epoch': 'False', 'warmup_lr_epochs': '0', 'scheduler.T_max': '7',
    }  # fmt: skip
    line = ' '.join(f'--configs.train.{key} {value}' for key, value in words.items())
    configs = parse(f'--configs configs/digits/cnn.py configs/dgc/wm5.py {line}')
    flat = configs.flat()
    for key, value in words.items():
        assert repr(flat[f'configs.train.{key}']) == value
    compressor = configs.train.compression.build().compressor
    assert (compressor.sample_ratio, compressor.resample) == (0.1, False)
    assert ratios(configs, 5) == [0.5, 0.25, 0.125, 0.0625, 0.01]


def test_nesterov_reaches_the_optimizer_of_the_compressed_run_in_either_order():
    for stack in ('configs/imagenet/resnet50.py configs/dgc/wm5.py', 'configs/dgc/wm5.py '
                  'configs/imagenet/resnet50.py'):  # fmt: skip
        optimizer = parse(f'--configs {stack}').train.optimizer
        assert optimizer._func is dgc.DGCSGD
        assert optimizer.nesterov is True


def test_dense_is_the_default():
    configs = parse('--configs configs/digits/cnn.py')
    with_file = parse('--configs configs/digits/cnn.py configs/dense/sgd.py')
    assert str(configs) == str(with_file)
    assert configs.train.optimizer._func is torch.optim.SGD


@pytest.mark.parametrize('file', FILES)
def test_every_file_loads_and_is_short(file):
    folder = Path(file).parent.name
    base = {'imagenet': 'configs/imagenet/resnet18.py'}.get(folder, 'configs/digits/cnn.py')
    adam = 'configs/dgc/wm5.py configs/optim/adam.py'
    before = {f'configs/optim/{name}.py': adam for name in ('first_moment', 'movement')}
    required = {'configs/plan/replay.py': '--configs.train.compression.planner.file plan.json'}
    configs = parse(f'--configs {base} {before.get(file, "")} {file} {required.get(file, "")}')
    assert configs.train.compression.build()
    assert optimizer_of(configs)
    assert len((ROOT / file).read_text().splitlines()) <= 30


def test_the_epochs_of_a_schedule_follow_the_command_line():
    for file in ('configs/cifar/resnet20.py', 'configs/digits/cnn.py'):
        configs = parse(f'--configs {file} --configs.train.num_epochs 77')
        assert configs.train.scheduler.T_max == 77 - configs.train.warmup_lr_epochs
    configs = parse('--configs configs/cifar/vgg16.py --configs.train.warmup_lr_epochs 0')
    assert configs.train.scheduler.T_max == 200
    configs = parse('--configs configs/imagenet/vgg16_bn.py --configs.train.warmup_lr_epochs 0')
    assert list(configs.train.scheduler.milestones) == [30, 60, 80]
