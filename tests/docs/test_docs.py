"""What the documents say: files that exist, settings that load, an example that works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from documented import documented, source

import dgc
from dgc.compressors import keep
from dgc.exchanges import AllGather
from dgc.horovod_settings import SETTINGS
from utils.cli import DECLARATIONS, OPTIONS, parse_arguments
from utils.config import load

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
# As if they had been written: the page's configs import them.
RandomSubset = documented('dgc/compressors/random_subset.py').RandomSubset
Ring = documented('dgc/exchanges/ring.py').Ring
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


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
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
    assert [int(row[0]) for row in rows] == list(range(1, 26))
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


@pytest.mark.parametrize('line', command_lines())
def test_command_lines_are_understood(line, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    words = written(shlex.split(line), tmp_path)
    arguments, overrides = parse_arguments(words[words.index('train.py') + 1 :])
    configs = load(arguments.configs, overrides)
    configs.check()
    assert configs.model
    assert configs.train.compression.build()


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
