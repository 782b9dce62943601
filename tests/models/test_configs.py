"""Every config file of a network: it is built as its page says, and makes a step of training."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from utils.build import build_optimizer
from utils.cli import DECLARATIONS
from utils.config import Config, load

pytest.importorskip('torchvision')

ROOT = DECLARATIONS.parents[1]
FOLDERS = ('cifar', 'digits', 'imagenet', 'mnist')
CLASSES = 7
REAL = 10_000_000  # parameters, below which a network is trained; of others, shapes are computed
# The least side of images that a network takes, or near it: tests are to be fast.
SIDES = {'cifar': 8, 'digits': 8, 'imagenet': 64, 'mnist': 28}
OTHER_SIDES = {
    **{f'configs/cifar/{name}.py': 32 for name in ('alexnet', 'lenet', 'vgg11', 'vgg16', 'vgg19')},
}


def stack(file: str) -> Config:
    return load([ROOT / file], root=DECLARATIONS)


def files() -> list[str]:
    """The config files that choose a network, without those that change what another one chose."""
    paths = [
        each for folder in FOLDERS for each in sorted((ROOT / 'configs' / folder).glob('*.py'))
    ]
    return [str(path.relative_to(ROOT)) for path in paths if 'configs.model' in path.read_text()]


FILES = files()


class Row(NamedTuple):
    """A row of docs/models.md: the number of parameters, and the published one in millions."""

    parameters: int
    published: str


def rows() -> dict[str, Row]:
    """The networks in docs/models.md, by config file."""
    page = (ROOT / 'docs/models.md').read_text()
    pattern = r'^\|[^|]+\| ([\d,]+) \| `(configs/[\w/]+\.py)` \| ([\d.]*)[^|]*\|'
    found = re.findall(pattern, page, re.M)
    return {file: Row(int(count.replace(',', '')), millions) for count, file, millions in found}


def counted(file: str) -> int:
    configs = stack(file)
    with torch.device('meta'):
        return sum(parameter.numel() for parameter in configs.model.build().parameters())


def test_every_network_is_in_the_table_of_the_page():
    missing = [f'| | {counted(file):,} | `{file}` | |' for file in FILES if file not in rows()]
    assert missing == []
    assert [file for file in rows() if not Path(ROOT / file).is_file()] == []


@pytest.mark.parametrize('file', FILES)
def test_a_network_has_the_published_size_and_makes_a_step_of_training(file):
    """With the loss and the optimizer of the file, on two small images."""
    row, configs, folder = rows()[file], stack(file), Path(file).parent.name
    side, trained = OTHER_SIDES.get(file, SIDES[folder]), row.parameters < REAL
    if folder == 'imagenet' and not trained:
        side = configs.dataset.image_size
    torch.manual_seed(0)
    with torch.device('cpu' if trained else 'meta'):
        model = configs.model.build().train()
        inputs = torch.rand(2, 1 if folder in ('digits', 'mnist') else 3, side, side)
        targets = torch.randint(CLASSES, (2,))
    check_size(row, model, configs.model._func)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = configs.train.criterion.build()(model(inputs), targets)
    loss.backward()
    build_optimizer(configs, model, 1).step()
    assert loss.shape == () and all(p.grad is not None for p in model.parameters())
    if not trained:
        return
    assert all(p.isfinite().all() for p in [loss, *model.parameters()])
    moved = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert sum(moved) > len(moved) / 2
    with torch.no_grad():
        assert model.eval()(inputs).shape == (2, 1000 if folder == 'imagenet' else 10)


def check_size(row: Row, model: torch.nn.Module, func: Callable[..., object]) -> None:
    """Compare the number of parameters with the page, the paper and torchvision."""
    assert sum(parameter.numel() for parameter in model.parameters()) == row.parameters
    if row.published:
        decimals = len(row.published.partition('.')[2])
        assert f'{row.parameters / 1e6:.{decimals}f}' == row.published
    if func.__module__.startswith('torchvision.') and func.__name__ != 'googlenet':
        from torchvision.models import get_model_weights

        assert get_model_weights(func).DEFAULT.meta['num_params'] == row.parameters


def test_patches_follow_the_size_of_the_images():
    files = [ROOT / 'configs/imagenet/tiny.py', ROOT / 'configs/imagenet/vit_b_16.py']
    configs = load(files, root=DECLARATIONS)
    with torch.device('meta'):
        assert configs.model.build()(torch.rand(2, 3, 64, 64)).shape == (2, 200)
