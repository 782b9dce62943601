"""How batches are loaded: processes and how they are started, and loaders of one's own."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from loaded_elsewhere import Started
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from datasets import DatasetError
from datasets.images import Images
from datasets.windows import Windows
from utils.build import build_loading, build_model, build_train_loader
from utils.checks import check_data
from utils.cli import DECLARATIONS
from utils.config import Config, ConfigError, load
from utils.data import Located, collate, evaluation_loader, own_loader, train_loader
from utils.loading import IN_PLACE, START_METHODS, Loading
from utils.training.elastic import ElasticLoader, Share

CPU = torch.device('cpu')


def images(count: int = 12) -> Images:
    pixels = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8)
    return Images(pixels, range(count), (0, 0, 0), (1, 1, 1), pad=2, flip=True)


def declared() -> Config:
    return load([DECLARATIONS], root=DECLARATIONS)


def test_whole_batches_are_not_put_together_again():
    batch = images().__getitems__([1, 2])
    inputs, targets = collate(batch)
    assert inputs is batch.inputs and targets is batch.targets
    for whole, part in zip(collate(batch), default_collate(list(batch)), strict=True):
        assert torch.equal(whole, part) and whole.dtype == part.dtype


@pytest.mark.parametrize('method', START_METHODS)
def test_processes_load_the_same_whichever_way_they_are_started(method):
    """Forked ones are at hand at once; others import torch, which takes seconds."""
    loading = Loading(1, method)
    loader, _ = train_loader(Located(Started(), 'train'), 3, 0, 1, 0, loading)
    numbers = [(numbers.tolist(), set(pids.tolist())) for numbers, pids in loader]
    expected, _ = train_loader(Located(Started(), 'train'), 3, 0, 1, 0, Loading(1, 'fork'))
    assert [each for each, _ in numbers] == [each.tolist() for each, _ in expected]
    (pid,) = set.union(*(pids for _, pids in numbers))
    assert pid != os.getpid()
    assert loading.forks == (method == 'fork')


@pytest.mark.parametrize('loads', ['in place', 'by processes', 'by its own', 'elastic'])
@pytest.mark.parametrize('is_text', [True, False])
def test_the_training_data_says_its_tokens_however_it_is_loaded(loads, is_text):
    """As 'speed/tokens' needs them; the default on GPUs is to load by processes."""
    data = Windows(torch.arange(40), 3) if is_text else images()
    common = Located(data, 'train'), 3, 0, 1, 0
    if loads == 'by its own':
        loader = own_loader(Config(loader_of), *common)[0]
    elif loads == 'elastic':
        loader = ElasticLoader(common[0], Share(12, 3, 0, True), None, None, Loading(1, 'fork'))
    else:
        loader = train_loader(*common, Loading(1, 'fork') if 'processes' in loads else IN_PLACE)[0]
    assert loader.dataset.tokens_per_sample == (3 if is_text else None)


def loader_of(dataset, order, batch_size):
    return DataLoader(dataset, batch_size, sampler=order)


def test_processes_that_are_slow_to_start_are_kept_for_the_next_evaluation():
    kept = [evaluation_loader(images(), 3, 0, 1, Loading(1, m)).persistent_workers
            for m in START_METHODS]  # fmt: skip
    assert kept == [False, True, True]


def test_a_data_set_that_cannot_be_sent_is_refused_before_training():
    class Local(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[int, int]:
            return index, index

    with pytest.raises(ConfigError, match=r"start_method = 'spawn': the data set cannot be sent"):
        train_loader(Located(Local(), 'train'), 2, 0, 1, 0, Loading(1, 'spawn'))
    by_function = SimpleNamespace(transform=lambda image: image)
    with pytest.raises(ConfigError, match='lambda'):
        Loading(1, 'forkserver').check(by_function)
    for loading in (IN_PLACE, Loading(1, 'fork')):
        loading.check(by_function)


def test_what_is_loaded_where():
    configs = declared()
    assert build_loading(configs, CPU) == IN_PLACE
    on_gpu = build_loading(configs, torch.device('cuda'))
    assert on_gpu == Loading(torch.get_num_threads(), None, pinned=True)
    configs.data.num_workers = 3
    assert build_loading(configs, CPU) == Loading(3)
    configs.data.num_workers = 0
    assert build_loading(configs, torch.device('cuda')) == Loading(0, pinned=True)
    configs.data.start_method = 'spawn'
    with pytest.raises(ConfigError, match=r'set configs\.data\.num_workers'):
        build_loading(configs, CPU)


@pytest.mark.parametrize(
    ('name', 'value', 'message'),
    [
        ('start_method', 'thread', 'it is one of fork, forkserver, spawn'),
        ('channels_last', 1, 'expected bool'),
        ('loader', print, r'print: give it a Config\(function'),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(name, value, message):
    configs = declared()
    configs.data[name] = value
    with pytest.raises(ConfigError, match=message):
        check_data(configs.data)


def test_channels_last_changes_the_layout_and_no_result():
    configs = load([DECLARATIONS.parent / 'cifar/resnet20.py'], root=DECLARATIONS)
    batch = torch.rand(4, 3, 32, 32)
    outputs = []
    for configs.data.channels_last in (False, True):
        torch.manual_seed(0)
        model = build_model(configs, CPU)
        outputs.append(model(batch))
        assert model.conv.weight.is_contiguous(memory_format=torch.channels_last) == (
            configs.data.channels_last
        )
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- loaders of one's own


class Slices:
    """A loader as one would write it: batches of what the data set holds."""

    def __init__(self, dataset, order, batch_size: int, surplus: int = 0, size: int = 0) -> None:
        self.dataset, self.order, self.batch = dataset, order, batch_size
        self.surplus, self.size = surplus, size or batch_size

    def __iter__(self):
        numbers = list(self.order)
        count = len(numbers) // self.batch + self.surplus
        for first in range(0, count * self.batch, self.batch):
            part = (numbers * 2)[first : first + self.size]
            yield default_collate([self.dataset[number] for number in part])


DATA = TensorDataset(torch.arange(23.0), torch.arange(23))


def made(**settings):
    return own_loader(Config(Slices, **settings), DATA, 3, 1, 2, 7)


def test_a_loader_of_ones_own_gives_what_the_usual_one_gives():
    ours, share = made()
    usual, other = train_loader(DATA, 3, 1, 2, 7)
    assert (len(ours), ours.batch_size) == (len(usual), usual.batch_size) == (3, 3)
    for share.epoch, share.skipped in ((0, 0), (1, 0), (1, 3), (1, 9)):
        other.epoch, other.skipped = share.epoch, share.skipped
        theirs = [targets.tolist() for _, targets in usual]
        assert [targets.tolist() for _, targets in ours] == theirs


@pytest.mark.parametrize('rows', [3, 12])
@pytest.mark.parametrize('streams', [None, 2])
def test_less_than_a_step_is_refused_by_both_loaders(streams, rows):
    data = TensorDataset(*DATA.tensors)
    data.streams = streams
    text = r'batch_size: \d+ training samples per worker are fewer than one step of 12'
    with pytest.raises(ValueError, match=text):
        train_loader(data, 12, 1, 2, 7, rows=rows)
    with pytest.raises(ValueError, match=text):
        own_loader(Config(Slices), data, 12, 1, 2, 7, rows)


def test_what_a_loader_gives_beyond_the_epoch_is_left_out_and_what_it_lacks_is_an_error():
    assert len(list(made(surplus=1)[0])) == 3
    with pytest.raises(DatasetError, match=r'gave 2 batches, and the rest of this epoch has 3'):
        list(made(surplus=-1)[0])


def test_a_batch_of_another_size_or_kind_is_an_error():
    with pytest.raises(DatasetError, match=r'a batch is \(\[2\], \[2\]\); return \(inputs, targ'):
        list(made(size=2)[0])
    with pytest.raises(DatasetError, match=r'a batch is \(int, int\)'):
        list(own_loader(Config(pairs), DATA, 3, 0, 1, 0)[0])
    with pytest.raises(ConfigError, match='it returned a int'):
        own_loader(Config(number), DATA, 3, 0, 1, 0)


def pairs(dataset, order, batch_size):
    """No tensors."""
    return [(1, 2)] * len(dataset)


def number(dataset, order, batch_size):
    """No loader."""
    return 5


def test_the_setting_replaces_the_loader_of_the_training_data():
    configs = declared()
    configs.train.batch_size, configs.train.num_batches_per_step = 2, 2
    configs.data.loader = Config(Slices)
    loader, _ = build_train_loader(configs, {'train': DATA}, 0, 1, CPU)
    assert [len(targets) for _, targets in loader] == [4] * 5
    configs.data.loader = Config(Slices, surplus='x')
    loader, _ = build_train_loader(configs, {'train': DATA}, 0, 1, CPU)
    with pytest.raises(TypeError):
        list(loader)
