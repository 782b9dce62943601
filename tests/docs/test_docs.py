"""What the documents say: files that exist, settings that load, an example that works."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dgc
from dgc.compressors import keep
from dgc.exchanges import AllGather
from utils.cli import parse_arguments
from utils.config import load

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
LAUNCHERS = ('horovodrun', 'torchrun', 'mpirun', 'python', 'OMP_NUM_THREADS=1')


def command_lines() -> list[str]:
    """Every command line of the documents that starts train.py, in one line each, with the shell
    variables that the page sets put in."""
    lines = []
    for page in PAGES:
        text = page.read_text().replace('\\\n', ' ')
        for name, value in re.findall(r'^ +([A-Z]+)="(.*?)"', text, re.M | re.S):
            text = text.replace(f'${name}', ' '.join(value.split()))
        lines += [
            line.strip() for line in text.splitlines() if 'train.py --configs configs' in line
        ]
    return [re.sub(r' #.*', '', line) for line in lines if line.startswith(LAUNCHERS)]


def example(file: str) -> ModuleType:
    """The module that docs/adding.md writes into ``file``."""
    page = (ROOT / 'docs/adding.md').read_text()
    block = re.search(rf'^( *)# {re.escape(file)}\n.*?```', page, re.S | re.M)
    assert block is not None, f'docs/adding.md has no {file}'
    source = textwrap.dedent(block[0].rpartition('```')[0])
    module = ModuleType(Path(file).stem)
    sys.modules[module.__name__] = module
    exec(compile(source, 'docs/adding.md', 'exec'), module.__dict__)
    return module


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r'\]\((?!http)([^)#]+)', page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_there_are_command_lines_to_test():
    assert len(command_lines()) >= 6


@pytest.mark.parametrize('line', command_lines())
def test_command_lines_are_understood(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = [word for word in shlex.split(line) if 'one_percent' not in word]  # it is to be written
    arguments, overrides = parse_arguments(words[words.index('train.py') + 1 :])
    configs = load(arguments.configs, overrides)
    configs.check()
    assert configs.model


def test_the_example_of_a_compressor_trains():
    composition = dgc.deep_gradient_compression(
        0.1, compressor=example('dgc/compressors/random_subset.py').RandomSubset()
    )
    layer = torch.nn.Linear(30, 20)
    optimizer = dgc.DistributedOptimizer(
        dgc.DGCSGD(layer.parameters(), lr=0.1), layer.named_parameters(), composition
    )
    before = layer.weight.detach().clone()
    layer(torch.ones(1, 30)).sum().backward()
    optimizer.step()
    changed = int((layer.weight != before).sum())
    assert changed == keep(600, 0.1)


def test_the_example_of_an_exchange_sums_as_an_all_gather_does():
    def worker(engine, exchange):
        layer = torch.nn.Linear(30, 20)
        torch.nn.init.zeros_(layer.weight)
        composition = dgc.deep_gradient_compression(0.1, exchange=exchange)
        optimizer = dgc.DistributedOptimizer(
            dgc.DGCSGD(layer.parameters(), lr=0.1), layer.named_parameters(), composition, engine
        )
        inputs = torch.randn(4, 30, generator=torch.Generator().manual_seed(engine.rank))
        layer(inputs).square().sum().backward()
        optimizer.step()
        return layer.weight.detach(), engine.traffic.sent

    ring = example('dgc/exchanges/ring.py').Ring
    torch.manual_seed(0)
    ours = dgc.simulate(3, lambda engine: worker(engine, ring()))
    torch.manual_seed(0)
    theirs = dgc.simulate(3, lambda engine: worker(engine, AllGather()))
    for (weight, _), (expected, _) in zip(ours, theirs, strict=True):
        assert torch.equal(weight, ours[0][0])
        torch.testing.assert_close(weight, expected)
