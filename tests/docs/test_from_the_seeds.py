"""docs/from-the-seeds.md: what it names exists here."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from utils.cli import DECLARATIONS, OPTIONS
from utils.config import ConfigError, load

ROOT = Path(__file__).parents[2]
PAGE = ROOT / 'docs/from-the-seeds.md'


def rows() -> list[tuple[str, str, str]]:
    """The cells of the page's tables, without their heads."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith('| ')]
    cells = [tuple(cell.strip() for cell in line.strip('|').split('|')) for line in lines]
    return [row for row in cells if row[0] != 'theirs']


def named(cell: str) -> list[str]:
    """What a cell has in backticks, without values after a name."""
    return [text.split(' = ')[0] for text in re.findall(r'`([^`]+)`', cell)]


@cache
def settings() -> frozenset[str]:
    """All settings of all config files, each after those of its own folder."""
    found: set[str] = set()
    for file in DECLARATIONS.parent.glob('*/*.py'):
        try:
            found |= set(load([file], root=DECLARATIONS)._accepted_paths())
        except ConfigError:  # of a library that is not installed
            continue
    return frozenset(found)


def exists(text: str) -> bool:
    """Whether a file, setting, option or module of this project has this name."""
    if text.startswith('configs/'):
        return (ROOT / text).exists()
    if match := re.fullmatch(r'(?:--)?(configs\.\S+)', text):
        return match[1] in settings()
    if text.startswith('--'):
        return text.split()[0] in OPTIONS
    if match := re.match(r'python -m ([\w.]+)', text):
        return importlib.util.find_spec(match[1]) is not None
    return True


@pytest.mark.parametrize('row', rows(), ids=lambda row: re.sub(r'\W+', '-', row[0])[:40])
def test_what_takes_a_place_here_exists_or_its_absence_has_a_reason(row):
    _, here, how = row
    assert [text for text in named(here) if not exists(text)] == []
    assert how, 'says in which form, or why not'
    assert here != '—' or re.search(r'not (here|as|needed)|refused|no config|out of scope|:', how)


def test_names_that_do_not_exist_are_found():
    wrong = ['configs/dgc/wm6.py', '--configs.train.batchsize', '--retry', 'python -m bench.none']
    right = ['configs/dgc/wm5.py', '--configs.train.batch_size', '--resume', 'python -m bench.step']
    assert not any(map(exists, wrong)) and all(map(exists, right))


def test_every_repository_has_a_table_of_some_length():
    sections = PAGE.read_text().split('\n## ')[1:]
    assert len(sections) == 4
    assert all(section.count('\n| ') > 15 for section in sections)
    assert len(rows()) > 100
