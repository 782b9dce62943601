"""MNIST: idx files in a folder, packed or not."""

import gzip

import numpy as np
import pytest
import torch

from datasets import MNIST, DatasetError, mnist

COUNTS = {'train': 7, 't10k': 3}


def idx(array):
    """An array as an idx file has it."""
    sizes = np.array(array.shape, '>u4').tobytes()
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


@pytest.fixture
def contents():
    """The bytes of the four files, by name."""
    generator = np.random.default_rng(0)
    found = {}
    for prefix, count in COUNTS.items():
        pixels = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        found[f'{prefix}-images-idx3-ubyte'] = idx(pixels)
        found[f'{prefix}-labels-idx1-ubyte'] = idx(np.arange(count, dtype=np.uint8))
    return found


def write(folder, contents, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if packed:
            (folder / f'{name}.gz').write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


def refused(root, **settings):
    with pytest.raises(DatasetError) as error:
        MNIST(str(root), download=False, **settings)
    line = str(error.value)
    assert '\n' not in line
    return line


@pytest.mark.parametrize('folder', ['', 'raw', 'MNIST/raw'])
@pytest.mark.parametrize('packed', [False, True])
def test_what_is_read_is_what_torchvision_reads(tmp_path, contents, folder, packed):
    datasets = pytest.importorskip('torchvision.datasets')
    write(tmp_path / folder, contents, packed)
    ours = MNIST(str(tmp_path), download=False)
    write(tmp_path / 'theirs/MNIST/raw', contents)
    for split, is_train in (('train', True), ('test', False)):
        theirs = datasets.MNIST(str(tmp_path / 'theirs'), train=is_train, download=False)
        assert torch.equal(ours[split].images[:, 0], theirs.data)
        assert ours[split].labels == theirs.targets.tolist()


def test_samples_are_standardised_and_only_training_images_are_shifted(tmp_path, contents):
    write(tmp_path, contents)
    data = MNIST(str(tmp_path), download=False, pad=2)
    image, label = data['test'][1]
    expected = (data['test'].images[1].float() / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(image, expected)
    assert label == 1
    assert len({tuple(data['train'][0][0].flatten().tolist()) for _ in range(60)}) > 10


@pytest.mark.parametrize(
    ('damage', 'message'),
    [
        (lambda content: content[:-1], 'has 5487 bytes for 7 x 28 x 28'),
        (lambda content: b'', 'is no idx file of 3 dimensions'),
        (lambda content: b'\x00\x00\x08\x01' + content[4:], 'is no idx file of 3 dimensions'),
    ],
)
def test_a_damaged_file_is_named(tmp_path, contents, damage, message):
    name = 'train-images-idx3-ubyte'
    write(tmp_path, {**contents, name: damage(contents[name])})
    assert f'{name} {message}' in refused(tmp_path)


def test_a_damaged_archive_is_named(tmp_path, contents):
    write(tmp_path, contents, packed=True)
    path = tmp_path / 't10k-labels-idx1-ubyte.gz'
    path.write_bytes(path.read_bytes()[:-9])
    assert 't10k-labels-idx1-ubyte.gz cannot be read' in refused(tmp_path)


def test_files_that_are_missing_or_of_different_lengths_are_named(tmp_path, contents):
    assert 'there are no files such as train-images-idx3-ubyte' in refused(tmp_path)
    name = 'train-labels-idx1-ubyte'
    write(tmp_path, {key: value for key, value in contents.items() if key != name})
    assert f'{name} is missing' in refused(tmp_path)
    write(tmp_path, {name: idx(np.zeros(6, np.uint8))})
    assert 'holds 7 x 28 x 28 pixels for 6 labels' in refused(tmp_path)


def test_a_label_above_the_number_of_classes_is_refused(tmp_path, contents):
    write(tmp_path, contents)
    assert 'has a label 6' in refused(tmp_path, num_classes=6)


def test_missing_data_is_downloaded_once(tmp_path, contents, monkeypatch):
    calls = []

    def fetch(parent):
        calls.append(parent)
        write(parent / 'MNIST/raw', contents)

    monkeypatch.setattr(mnist, '_fetch', fetch)
    for _ in range(2):
        assert len(MNIST(str(tmp_path))['train']) == 7
    assert len(calls) == 1


def test_a_download_that_fails_says_what_to_do(tmp_path, monkeypatch):
    def fetch(parent):
        raise OSError('no network')

    monkeypatch.setattr(mnist, '_fetch', fetch)
    with pytest.raises(DatasetError, match=r'download failed \(no network\); point it at a folder'):
        MNIST(str(tmp_path))
