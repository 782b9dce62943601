"""CIFAR: reading, checksums, download, errors."""

import hashlib
import logging
import multiprocessing
import os
import pickle
import shutil
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from datasets import CIFAR, DatasetError, cifar_files
from datasets.cifar_files import RELEASES

PER_FILE = 20


def write_folder(parent, num_classes=10, **changes):
    """A small folder in the published layout."""
    release = RELEASES[num_classes]
    folder = parent / release.folder
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for names in release.files.values():
        for name in names:
            entries = {
                'data': generator.integers(0, 256, (PER_FILE, 3072), dtype=np.uint8),
                release.label_name: [i % num_classes for i in range(PER_FILE)],
            }
            (folder / name).write_bytes(pickle.dumps({**entries, **changes}))
    return folder


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def publish(monkeypatch, folder, archive=None):
    """Let the published checksums be those of `folder` and `archive`."""
    release = RELEASES[10]
    files = {
        split: {name: md5(folder / name) for name in names}
        for split, names in release.files.items()
    }
    published = replace(release, files=files, archive_md5=md5(archive) if archive else '')
    monkeypatch.setitem(RELEASES, 10, published)


def the_line(error):
    line = str(error.value)
    assert '\n' not in line
    return line


@pytest.mark.parametrize('num_classes', [10, 100])
def test_shapes_types_and_order(tmp_path, num_classes):
    folder = write_folder(tmp_path, num_classes)
    cifar = CIFAR(str(tmp_path), num_classes, verify=False)
    files = RELEASES[num_classes].files
    assert {name: len(split) for name, split in cifar.items()} == {
        'train': PER_FILE * len(files['train']),
        'test': PER_FILE,
    }
    for split in cifar.values():
        image, label = split[3]
        assert image.shape == (3, 32, 32)
        assert image.dtype == torch.float32
        assert label == 3
    name = next(iter(files['train']))
    first = pickle.loads((folder / name).read_bytes())['data'][0].reshape(3, 32, 32)
    assert np.array_equal(cifar['train'].images[0], first)


def test_bytes_are_normalised_by_the_published_mean_and_spread(tmp_path):
    write_folder(tmp_path, data=np.full((PER_FILE, 3072), 255, np.uint8))
    image, _ = CIFAR(str(tmp_path), verify=False)['test'][0]
    torch.testing.assert_close(image[0, 0, 0], torch.tensor((1 - 0.4914) / 0.2470))


def test_only_training_images_are_augmented_and_the_seed_repeats_them(tmp_path):
    write_folder(tmp_path)
    cifar = CIFAR(str(tmp_path), verify=False)

    def epoch(split):
        return torch.cat([images for images, _ in DataLoader(cifar[split], batch_size=8)])

    assert torch.equal(epoch('test'), epoch('test'))
    torch.manual_seed(5)
    first = epoch('train')
    assert not torch.equal(epoch('train'), first)
    torch.manual_seed(5)
    assert torch.equal(epoch('train'), first)


def test_a_number_takes_the_first_images(tmp_path):
    write_folder(tmp_path)
    everything = CIFAR(str(tmp_path), verify=False)
    cifar = CIFAR(str(tmp_path), verify=False, num_train=30, num_test=7)
    for split, count in (('train', 30), ('test', 7)):
        assert len(cifar[split]) == count
        assert cifar[split].labels == everything[split].labels[:count]
        assert torch.equal(cifar[split].images, everything[split].images[:count])


@pytest.mark.parametrize(
    ('setting', 'value', 'available'),
    [('num_train', 0, 100), ('num_train', 101, 100), ('num_test', 0, 20), ('num_test', 21, 20)],
)
def test_a_number_that_is_not_there_is_refused(tmp_path, setting, value, available):
    write_folder(tmp_path)
    with pytest.raises(DatasetError, match=f'{setting} = {value}: there are {available} images'):
        CIFAR(str(tmp_path), verify=False, **{setting: value})


def test_image_size(tmp_path):
    write_folder(tmp_path)
    assert CIFAR(str(tmp_path), image_size=48, verify=False)['train'][0][0].shape == (3, 48, 48)


def test_published_files_are_read_without_a_word(tmp_path, monkeypatch, caplog):
    publish(monkeypatch, write_folder(tmp_path))
    assert len(CIFAR(str(tmp_path))['test']) == PER_FILE
    assert not caplog.records


def test_nothing_is_written_where_the_folder_is_there(tmp_path, monkeypatch):
    publish(monkeypatch, write_folder(tmp_path))
    CIFAR(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [RELEASES[10].folder]


def test_other_checksums_are_refused_and_the_setting_named(tmp_path):
    write_folder(tmp_path)
    with pytest.raises(DatasetError) as error:
        CIFAR(str(tmp_path))
    line = the_line(error)
    assert line.startswith('configs.dataset.verify = True: ')
    assert 'data_batch_1' in line
    assert 'set it False' in line


def test_without_verification_one_warning_names_what_differs(tmp_path, monkeypatch, caplog):
    folder = write_folder(tmp_path)
    publish(monkeypatch, folder)
    with open(folder / 'data_batch_2', 'ab') as file:
        file.write(b'more')
    with caplog.at_level(logging.WARNING):
        CIFAR(str(tmp_path), verify=False)
    (record,) = caplog.records
    assert 'data_batch_2' in record.getMessage()
    assert 'test_batch' not in record.getMessage()


def test_a_missing_file_is_named(tmp_path):
    folder = write_folder(tmp_path)
    (folder / 'data_batch_4').unlink()
    with pytest.raises(DatasetError, match='data_batch_4 is missing') as error:
        CIFAR(str(tmp_path), verify=False)
    assert the_line(error).startswith('configs.dataset.root = ')


@pytest.mark.parametrize(
    'changes',
    [
        {'data': np.zeros((PER_FILE, 3071), np.uint8)},
        {'data': np.zeros((PER_FILE, 3072), np.float32)},
        {'data': 'text'},
        {'labels': [10] * PER_FILE},
        {'labels': [0]},
        {'labels': None},
    ],
    ids=str,
)
def test_files_that_hold_something_else_are_refused(tmp_path, changes):
    write_folder(tmp_path, **changes)
    with pytest.raises(DatasetError, match='data_batch_1'):
        CIFAR(str(tmp_path), verify=False)


def test_a_cut_file_is_refused(tmp_path):
    path = write_folder(tmp_path) / 'test_batch'
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DatasetError, match='test_batch cannot be read'):
        CIFAR(str(tmp_path), verify=False)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ('pwned',)


def test_unverified_files_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path, extra=Malicious())
    with pytest.raises(DatasetError, match='mkdir is refused'):
        CIFAR(str(tmp_path), verify=False)
    assert not Path('pwned').exists()


def test_without_download_a_missing_folder_names_setting_value_and_remedy(tmp_path):
    root = str(tmp_path / 'nowhere')
    with pytest.raises(DatasetError) as error:
        CIFAR(root, download=False)
    line = the_line(error)
    assert line.startswith(f'configs.dataset.root = {root!r}: ')
    assert 'cifar-10-batches-py' in line
    assert 'configs.dataset.download True' in line
    assert not (tmp_path / 'nowhere').exists()


def test_an_unknown_number_of_classes_is_refused(tmp_path):
    with pytest.raises(DatasetError, match='num_classes = 20'):
        CIFAR(str(tmp_path), num_classes=20)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A published archive, and a network that delivers it and counts the deliveries."""
    utils = pytest.importorskip('torchvision.datasets.utils')
    folder = write_folder(tmp_path / 'published')
    path = tmp_path / RELEASES[10].archive
    with tarfile.open(path, 'w:gz') as file:
        file.add(folder, folder.name)
    publish(monkeypatch, folder, path)
    deliveries = tmp_path / 'deliveries'
    deliveries.touch()

    def deliver(url, filename, *_):
        assert url == f'https://www.cs.toronto.edu/~kriz/{path.name}'
        with open(deliveries, 'a') as file:
            file.write('.')
        time.sleep(0.3)  # long enough for others to come
        shutil.copy(path, filename)

    monkeypatch.setattr(utils, '_get_redirect_url', lambda url, **_: url)
    monkeypatch.setattr(utils, '_urlretrieve', deliver)
    return path


def deliveries(archive):
    return len((archive.parent / 'deliveries').read_text())


def test_download(tmp_path, archive):
    root = tmp_path / 'data' / 'cifar10'
    assert len(CIFAR(str(root))['test']) == PER_FILE
    CIFAR(str(root))
    assert deliveries(archive) == 1
    assert not list(root.glob('*.tar.gz')), 'the archive is not kept'


def test_processes_racing_on_an_empty_root_download_once(tmp_path, archive):
    context = multiprocessing.get_context('fork')
    processes = [context.Process(target=CIFAR, args=(str(tmp_path / 'data'),)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert deliveries(archive) == 1


def test_a_cut_archive_is_refused_and_the_next_attempt_succeeds(tmp_path, archive):
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    root = tmp_path / 'data'
    with pytest.raises(DatasetError, match='download failed') as error:
        CIFAR(str(root))
    assert the_line(error).startswith(f'configs.dataset.root = {str(root)!r}: ')
    assert not (root / RELEASES[10].folder).exists()
    archive.write_bytes(whole)
    assert len(CIFAR(str(root))['test']) == PER_FILE


def test_no_network_is_the_same_clear_error(tmp_path, archive, monkeypatch):
    from urllib.error import URLError

    def no_network(*_):
        raise URLError('Name or service not known')

    monkeypatch.setattr('torchvision.datasets.utils._urlretrieve', no_network)
    with pytest.raises(DatasetError, match='not known') as error:
        CIFAR(str(tmp_path / 'data'))
    assert 'point it at the folder that holds cifar-10-batches-py' in the_line(error)


def test_checksums_are_those_that_torchvision_knows():
    published = pytest.importorskip('torchvision.datasets')
    for num_classes, known in ((10, published.CIFAR10), (100, published.CIFAR100)):
        release = cifar_files.RELEASES[num_classes]
        assert list(release.files['train'].items()) == list(map(tuple, known.train_list))
        assert list(release.files['test'].items()) == list(map(tuple, known.test_list))
        assert release.archive_md5 == known.tgz_md5
        assert known.url.endswith(f'/{release.archive}')
        assert release.folder == known.base_folder


def test_the_real_data():
    root = os.environ.get('DGC_DATA', '')
    if not Path(root, 'cifar-10-batches-py').is_dir():
        pytest.skip('DGC_DATA does not name a folder that holds cifar-10-batches-py')
    cifar = CIFAR(root, verify=False)
    assert [len(split) for split in cifar.values()] == [50_000, 10_000]
    test = torch.stack([image for image, _ in cifar['test']])
    assert test.mean((0, 2, 3)).abs().max() < 0.05
    assert (test.std((0, 2, 3)) - 1).abs().max() < 0.05
    counts = torch.bincount(torch.tensor(CIFAR(root, verify=False, num_train=5000)['train'].labels))
    assert counts.min() > 400
