"""The table of algorithms: complete, and each row is what its config files choose."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import dgc
from dgc.algorithms import ALGORITHMS
from dgc.composition import describe
from dgc.parameter_server import Asynchronous
from utils.cli import DECLARATIONS, OPTIONS
from utils.config import load

ROOT = Path(__file__).parents[2]
every = pytest.mark.parametrize('row', ALGORITHMS.values(), ids=ALGORITHMS)
PARTS = (
    'memory',
    'compressor',
    'exchange',
    'codec',
    'transform',
    'rules',
    'planner',
    'clipping',
    'control',
)


@every
def test_a_row_says_what_it_is(row):
    assert re.fullmatch(r'[a-z0-9]+(-[a-z0-9]+)*', row.name)
    assert row.summary and not row.summary.endswith('.')
    assert row.paper
    kind = Asynchronous if row.kind.has_server else dgc.Composition
    assert isinstance(row.make(), kind)


@every
def test_a_row_is_fresh_each_time(row):
    assert row.make() is not row.make()
    assert row.make().memory is not row.make().memory


@every
def test_its_config_files_choose_the_same_parts(row):
    files = [ROOT / name for name in ('configs/digits/cnn.py', *row.configs)]
    configs = load(files, [], OPTIONS, DECLARATIONS)
    chosen, made = configs.train.compression.build(), row.make()
    for part in {field.name for field in dataclasses.fields(made)} & set(PARTS):
        assert describe(getattr(chosen, part)) == describe(getattr(made, part)), part
    assert chosen.schedule.density == made.schedule.density


@every
def test_its_density_is_a_setting_where_it_says_so(row):
    if not row.has_density:
        assert describe(row.composition(0.05)) == describe(row.composition())
        return
    assert row.composition(0.05).schedule.density == 0.05


def test_every_file_of_algorithms_is_in_the_table():
    modules = {row.make.__module__.rpartition('.')[2] for row in ALGORITHMS.values()}
    files = {file.stem for file in (ROOT / 'dgc/algorithms').glob('*.py')}
    assert files - {'__init__', 'table'} == modules


def test_each_file_opens_with_the_paper_and_its_steps():
    for file in (ROOT / 'dgc/algorithms').glob('[a-z]*.py'):
        if file.stem == 'table':
            continue
        docstring = file.read_text().split('"""')[1]
        assert re.search(r'^    1\. ', docstring, re.M), f'{file.name} has no numbered steps'
