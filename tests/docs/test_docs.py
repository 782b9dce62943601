"""What the documents say: files that exist, settings that load, snippets that work."""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from documented import documented, source

import dgc
from dgc.compressors import keep
from dgc.exchanges import AllGather
from dgc.horovod_settings import SETTINGS
from tools.snippets import commands
from tools.snippets.run import snippets
from utils.cli import DECLARATIONS, OPTIONS, parse_arguments
from utils.config import load

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    *sorted(ROOT.glob('*.md')),
    *sorted((ROOT / 'docs').rglob('*.md')),
    *sorted((ROOT / 'examples').glob('*.md')),
]
HAND_WRITTEN = [page for page in PAGES if page.name not in ('CHANGELOG.md', 'failures.md')]
# As if they had been written: the page's configs import them.
RandomSubset = documented('dgc/compressors/random_subset.py').RandomSubset
Ring = documented('dgc/exchanges/ring.py').Ring


def written(words: list[str], folder: Path) -> list[str]:
    """Command-line words, in which files that docs/adding.md shows are written into ``folder``."""
    found = []
    for word in words:
        if word.endswith('.py') and not (ROOT / word).exists():
            path = folder / word
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source(word))
            word = str(path)
        found.append(word)
    return found


def named(page: Path) -> str:
    """The id of a page: its path."""
    return str(page.relative_to(ROOT))


def command_lines() -> list[str]:
    """The command lines of all pages that start train.py."""
    return [line for page in PAGES for line in commands.command_lines(page)]


def tool_lines() -> list[str]:
    """The command lines of all pages that start a tool or benchmark with options."""
    text = '\n'.join(page.read_text().replace('\\\n', ' ') for page in HAND_WRITTEN)
    found = re.findall(r'python -m ((?:tools|bench)\.\w+ [^\n`]*--[^\n`]*)', text)
    return list(dict.fromkeys(' '.join(line.split()) for line in found))


@cache
def help_of(module: str) -> str:
    """What ``python -m module --help`` prints."""
    is_package = importlib.util.find_spec(module).submodule_search_locations is not None
    program = importlib.import_module(f'{module}.__main__' if is_package else module)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit):
        program.main(['--help'])
    return output.getvalue()


@pytest.mark.parametrize('page', PAGES, ids=named)
def test_links_lead_somewhere(page):
    links = re.findall(r'\]\((?!http)([^)#]+)', page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def is_there(test: str) -> bool:
    """Whether a file of tests holds the class or function that ``file::name::name`` names."""
    file, *names = test.split('::')
    path = ROOT / file
    text = path.read_text() if path.is_file() else ''
    return bool(text) and all(re.search(rf'^ *(def|class) {name}\b', text, re.M) for name in names)


def rows_of(page: str, first_cell: str) -> list[list[str]]:
    """The cells of the rows of a page's tables whose first cell matches a pattern."""
    lines = (ROOT / 'docs' / page).read_text().splitlines()
    return [
        [cell.strip() for cell in line.strip('|').split('|')]
        for line in lines
        if re.match(rf'\| {first_cell} \|', line)
    ]


def named_tests(cell: str) -> list[str]:
    """The tests that a cell names, all of which must be there."""
    named = re.findall(r'`(tests/[^`]+)`', cell)
    assert [test for test in named if not is_there(test)] == []
    return named


def test_every_failure_has_tests_that_are_there():
    rows = rows_of('failures.md', r'\d+')
    assert [int(row[0]) for row in rows] == list(range(1, 32))
    assert [row[0] for row in rows if not named_tests(row[-1])] == []


def test_every_test_of_an_interface_has_a_result_a_reason_and_one_of_ours():
    rows = rows_of('interfaces.md', r'`test_\w+`')
    assert len(rows) >= 55
    for name, result, reason, ours in rows:
        assert result in ('passed', 'refused', 'inapplicable'), name
        assert reason or result == 'passed', name
        assert named_tests(ours) or result == 'inapplicable', name


def test_every_setting_of_horovod_is_in_the_documents():
    text = (ROOT / 'docs/interfaces.md').read_text()
    assert [name for name in SETTINGS if f'`{name}`' not in text] == []


def test_there_are_command_lines_to_test():
    assert len(command_lines()) >= 6


@pytest.mark.parametrize('line', tool_lines())
def test_options_of_tools_are_theirs(line):
    module, _, rest = line.partition(' ')
    options = re.findall(r'(?<!\S)(--[a-z][a-z-]*)', rest.partition(' -- ')[0])
    known = re.findall(r'--[a-z][a-z-]*', help_of(module))
    assert [each for each in options if each not in (*known, '--configs', '--help')] == []


@pytest.mark.parametrize('page', HAND_WRITTEN, ids=named)
def test_make_has_every_target_that_is_named(page):
    makefile = (ROOT / 'Makefile').read_text()
    targets = re.findall(r'(?:`|^    )make ([a-z-]+)', page.read_text(), re.M)
    assert [name for name in targets if not re.search(rf'^{name}:', makefile, re.M)] == []


def test_every_snippet_of_python_works(warm_python):
    """Those that are not executed say why, or are files, which other tests here write."""
    pages = [str(page) for page in HAND_WRITTEN if any(not s.reason for s in snippets(page))]
    assert len(pages) >= 4
    done = subprocess.run(
        [sys.executable, str(ROOT / 'tools/snippets/run.py'), *pages],
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r'^[1-9]\d* snippets executed by 1 ranks, 0 failed', done.stdout, re.M)


def test_files_that_pages_show_are_those_of_adding():
    """Only docs/adding.md has tests that write and execute files."""
    pages = {page.name for page in PAGES for each in snippets(page) if each.reason == 'a file'}
    assert pages == {'adding.md'}


def test_every_page_is_in_the_navigation_of_the_site_once():
    def files(entry):
        entries = entry.values() if isinstance(entry, dict) else entry
        return [entry] if isinstance(entry, str) else [f for each in entries for f in files(each)]

    navigation = yaml.safe_load((ROOT / 'mkdocs.yml').read_text())['nav']
    docs = ROOT / 'docs'
    assert sorted(files(navigation)) == sorted(str(p.relative_to(docs)) for p in docs.rglob('*.md'))


def test_the_reference_has_every_algorithm_once():
    page = (ROOT / 'docs/reference/algorithms.md').read_text()
    modules = (file.stem for file in (ROOT / 'dgc/algorithms').glob('[!_]*.py'))
    shown = re.findall(r'^::: dgc\.algorithms\.(\w+)$', page, re.M)
    assert sorted(shown) == sorted(modules)


@pytest.mark.parametrize('page', [p for p in PAGES if 'docs' in p.parts], ids=named)
def test_what_belongs_to_a_list_is_indented_as_the_site_needs_it(page):
    """By four: with two or three, the site ends the list there and counts from 1 again."""
    lines = page.read_text().splitlines()
    assert [line for line in lines if re.match(r' {2,3}(```|\|)', line)] == []


def test_the_readme_fits_on_a_screen():
    assert len((ROOT / 'README.md').read_text().splitlines()) <= 110


@pytest.mark.parametrize('line', command_lines())
def test_command_lines_are_understood(line, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    words = written(shlex.split(line), tmp_path)
    arguments, overrides = parse_arguments(words[words.index('train.py') + 1 :])
    configs = load(arguments.configs, overrides)
    configs.check()
    assert configs.model
    assert configs.train.compression.build()


def test_weights_that_a_page_does_not_copy_are_of_its_model(monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = [line for line in command_lines() if '--configs.pretrained.skip' in line]
    assert lines
    for words in map(shlex.split, lines):
        arguments, overrides = parse_arguments(words[words.index('train.py') + 1 :])
        configs = load(arguments.configs, overrides)
        names = list(configs.model.build().state_dict())
        for pattern in configs.pretrained.skip:
            assert fnmatch.filter(names, pattern), f'{pattern} of {words}: none of {names}'


def test_the_example_of_a_compressor_trains():
    composition = dgc.deep_gradient_compression(0.1, compressor=RandomSubset())
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

    torch.manual_seed(0)
    ours = dgc.simulate(3, lambda engine: worker(engine, Ring()))
    torch.manual_seed(0)
    theirs = dgc.simulate(3, lambda engine: worker(engine, AllGather()))
    for (weight, _), (expected, _) in zip(ours, theirs, strict=True):
        assert torch.equal(weight, ours[0][0])
        torch.testing.assert_close(weight, expected)


@pytest.mark.parametrize(
    ('file', 'part', 'row'),
    [
        ('random_subset', 'compressor', 'RandomSubset'),
        ('ring', 'exchange', 'Ring'),
    ],
)
def test_the_walk_throughs_are_followed_to_their_end(file, part, row, monkeypatch, tmp_path):
    """docs/failures.md, row 23: the config chooses the part, and the property tests have the row.

    The rows of test_properties.py and test_exchanges_reference.py execute the page's code.
    """
    monkeypatch.chdir(ROOT)
    files = ['configs/digits/cnn.py', 'configs/dgc/wm5.py', f'configs/dgc/{file}.py']
    composition = load(written(files, tmp_path)).train.compression.build()
    assert type(getattr(composition, part)).__name__ == row
    page = ' '.join((ROOT / 'docs/adding.md').read_text().split())
    tests = ' '.join((ROOT / 'tests/dgc/test_properties.py').read_text().split())
    (line,) = re.findall(rf"'[a-z ]+': Row\(lambda: sparse\({part}={row}\(\)\)\)", page)
    assert line in tests


def test_the_example_of_a_model_and_its_data_learns(monkeypatch, tmp_path):
    """docs/failures.md, row 23: the page's data() was `...`."""
    monkeypatch.chdir(ROOT)
    files = written(['mine/mlp.py', 'configs/dgc/wm5.py'], tmp_path)
    configs = load(files, ['--configs.model.width', '256'], OPTIONS, DECLARATIONS)
    configs.check()
    torch.manual_seed(0)
    model, data = configs.model.build(), configs.dataset.build()
    assert model[0].out_features == 256 and [*data] == ['train', 'test']
    sgd = torch.optim.SGD(model.parameters(), lr=configs.train.optimizer.lr, momentum=0.9)
    for _ in range(3):
        for batch in torch.utils.data.DataLoader(data['train'], configs.train.batch_size):
            inputs, targets = batch
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            sgd.step()
    inputs, targets = data['test'].tensors
    assert (model(inputs).argmax(1) == targets).float().mean() > 0.5  # by chance 0.1
