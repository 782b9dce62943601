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


def test_fewer_classes_are_the_first(root):
    imagenet = ImageNet(str(root), num_classes=2)
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
    with pytest.raises(DatasetError, match='different classes'):
        ImageNet(str(root), 3)


def test_fewer_classes_than_asked_for_are_refused(root):
    with pytest.raises(DatasetError, match=r'configs\.dataset\.num_classes = 1000'):
        ImageNet(str(root))
