"""ImageNet's folders."""

import pytest
import torch

from datasets import DatasetError, ImageNet

Image = pytest.importorskip('PIL.Image')
pytest.importorskip('torchvision')


@pytest.fixture
def root(tmp_path):
    for split, count in (('train', 3), ('val', 2)):
        for label, colour in enumerate(('red', 'lime', 'blue')):
            folder = tmp_path / split / f'n0{label}'
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new('RGB', (40, 30), colour).save(folder / f'{i}.JPEG')
    return tmp_path


def test_splits_shapes_and_labels(root):
    imagenet = ImageNet(str(root), num_classes=3)
    assert [len(imagenet[split]) for split in ('train', 'test')] == [9, 6]
    for split in imagenet.values():
        image, label = split[len(split) - 1]
        assert image.shape == (3, 224, 224)
        assert image.dtype == torch.float32
        assert label == 2
        assert image.mean((1, 2)).argmax() == 2, 'blue'


def test_image_size(root):
    assert ImageNet(str(root), 3, image_size=64)['test'][0][0].shape == (3, 64, 64)


def test_fewer_classes_are_the_first_where_that_is_said(root):
    imagenet = ImageNet(str(root), num_classes=2, subset=True)
    assert {label for _, label in imagenet['train']} == {0, 1}
    assert len(imagenet['test']) == 4


def test_a_missing_root_names_setting_value_and_remedy(tmp_path):
    root = str(tmp_path / 'nowhere')
    with pytest.raises(DatasetError) as error:
        ImageNet(root)
    line = str(error.value)
    assert '\n' not in line
    assert line.startswith(f'configs.dataset.root = {root!r}: ')
    assert 'train/<class>' in line


def test_validation_images_in_one_flat_folder_are_refused(root):
    for path in list((root / 'val').glob('*/*')):
        path.unlink()
    with pytest.raises(DatasetError, match=r'configs\.dataset\.root'):
        ImageNet(str(root), 3)


def test_different_classes_in_the_splits_are_refused(root):
    (root / 'val' / 'n00').rename(root / 'val' / 'other')
    line = r'different classes \(3 and 3; n00 is only in train\)'
    with pytest.raises(DatasetError, match=line):
        ImageNet(str(root), 3)


@pytest.mark.parametrize(('num_classes', 'subset'), [(1000, False), (1000, True), (2, False)])
def test_another_number_of_classes_is_refused_and_both_are_named(root, num_classes, subset):
    """docs/failures.md, row 3."""
    line = rf'configs\.dataset\.num_classes = {num_classes}: .* holds 3 classes, n00 to n02; set'
    with pytest.raises(DatasetError, match=line) as raised:
        ImageNet(str(root), num_classes, subset=subset)
    assert ('subset True' in str(raised.value)) == (num_classes == 2)


@pytest.mark.parametrize('name', ['.ipynb_checkpoints', '.Trash-0', 'n00/.ipynb_checkpoints'])
def test_hidden_folders_and_files_are_no_classes_and_no_samples(root, name):
    """docs/failures.md, row 3."""
    for split in ('train', 'val'):
        hidden = root / split / name
        hidden.mkdir()
        Image.new('RGB', (4, 4)).save(hidden / '0.png')
        Image.new('RGB', (4, 4)).save(root / split / 'n01' / '._0.png')
    imagenet = ImageNet(str(root), num_classes=3)
    assert [len(imagenet[split]) for split in ('train', 'test')] == [9, 6]
    assert [imagenet['test'][index][1] for index in range(6)] == [0, 0, 1, 1, 2, 2]


def test_the_order_is_that_of_torchvision(root):
    from torchvision.datasets import ImageFolder

    (root / 'train' / 'n01' / 'deep').mkdir()
    Image.new('RGB', (4, 4)).save(root / 'train' / 'n01' / 'deep' / '9.PNG')
    folder = ImageFolder(root / 'train')
    ours = ImageNet(str(root), 3)['train']
    assert ours.samples == folder.samples and ours.classes == folder.classes


@pytest.mark.parametrize('damage', [b'', b'no image', 'half'])
def test_a_broken_image_is_named_or_replaced(root, damage, caplog):
    """docs/failures.md, row 19."""
    for path in (root / 'train/n02/2.JPEG', root / 'val/n00/0.JPEG'):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if damage == 'half' else damage)
    imagenet = ImageNet(str(root), 3)
    for split, index, path in (('train', 8, 'train/n02/2.JPEG'), ('test', 0, 'val/n00/0.JPEG')):
        with pytest.raises(DatasetError, match=rf'{path} is no image that can be read') as raised:
            imagenet[split][index]
        assert str(raised.value).startswith(f"configs.dataset.root = '{root}': {root / path}")
    assert imagenet['train'][7][1] == 2
    skipping = ImageNet(str(root), 3, skip_broken=True)
    assert skipping['train'][8][1] == 0  # the next one, from the start
    assert f'{root}/train/n02/2.JPEG is skipped' in caplog.text
    with pytest.raises(DatasetError):  # an accuracy over fewer images could not be compared
        skipping['test'][0]


def test_images_that_are_all_broken_end(root):
    for path in root.glob('train/*/*'):
        path.write_bytes(b'')
    with pytest.raises(DatasetError, match='can be read'):
        ImageNet(str(root), 3, skip_broken=True)['train'][4]
