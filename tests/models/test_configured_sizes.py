"""Config files of texts and speech: the networks have the parameters that their first lines say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from utils.build import ranking
from utils.config import load
from utils.listing import first_line
from utils.meters import QUALITY

ROOT = Path(__file__).parents[2]
FOLDERS = ('an4', 'imdb', 'ptb', 'synthesised', 'text')
FILES = [
    file
    for folder in FOLDERS
    for file in sorted((ROOT / 'configs' / folder).glob('*.py'))
    if file.name != '__init__.py'
]
UPON = {'ptb/tied': 'ptb/medium', 'ptb/valid_only': 'ptb/small'}  # files that change others


def named(file: Path) -> str:
    return f'{file.parent.name}/{file.stem}'


@pytest.mark.parametrize('file', FILES, ids=named)
def test_a_file_builds_its_network_and_meters(file):
    under = UPON.get(named(file))
    configs = load([*([f'configs/{under}.py'] if under else []), file])
    with torch.device('meta'):
        count = sum(p.numel() for p in configs.model.build().parameters())
    said = re.search(r'([\d.]+) M parameters', first_line(file))
    if said:
        decimals = len(said[1].partition('.')[2])
        assert round(count / 1e6, decimals) == float(said[1])
    meters = configs.train.meters
    assert all(name.startswith(QUALITY) for name, _ in meters.items())
    better = 'higher' if configs.train.metric.startswith('acc/') else 'lower'
    assert ranking(configs).better == better
    configs.train.criterion.build()
    configs.train.compression.build()
    configs.train.scheduler.build(torch.optim.SGD([torch.zeros(1)], lr=1.0))


@pytest.mark.parametrize('folder', FOLDERS)
def test_a_compression_follows(folder):
    """It keeps the clipping of the workload."""
    file = next(file for file in FILES if file.parent.name == folder)
    alone, compressed = load([file]), load([file, 'configs/dgc/wm5.py'])
    clips = 'gradient_clipping' in alone.train.compression
    assert not clips or str(alone.train.compression.gradient_clipping) == str(
        compressed.train.compression.gradient_clipping
    )
    compressed.train.compression.build()
