"""Tiny ImageNet's folders, and its file of annotations."""

import pytest
import torch

from datasets import DatasetError, TinyImageNet

Image = pytest.importorskip('PIL.Image')
pytest.importorskip('torchvision')

COLOURS = {'n01': 'red', 'n02': 'lime', 'n03': 'blue'}


@pytest.fixture
def root(tmp_path):
    lines = []
    for name, colour in COLOURS.items():
        folder = tmp_path / 'train' / name / 'images'
        folder.mkdir(parents=True)
        (folder.parent / f'{name}_boxes.txt').write_text('none')
        for number in range(2):
            Image.new('RGB', (64, 64), colour).save(folder / f'{name}_{number}.JPEG')
    (tmp_path / 'val/images').mkdir(parents=True)
    for number, name in enumerate(reversed(COLOURS)):
        Image.new('RGB', (64, 64), COLOURS[name]).save(tmp_path / f'val/images/val_{number}.JPEG')
        lines.append(f'val_{number}.JPEG\t{name}\t0\t0\t62\t62\n')
    (tmp_path / 'val/val_annotations.txt').write_text(''.join(lines))
    return tmp_path


def refused(root, **settings):
    with pytest.raises(DatasetError) as error:
        TinyImageNet(str(root), **{'num_classes': 3, **settings})
    line = str(error.value)
    assert '\n' not in line
    return line


def check(data, test_labels):
    assert [len(data[split]) for split in ('train', 'test')] == [6, 3]
    assert [label for _, label in data['test']] == test_labels
    for split in data.values():
        for image, label in split:
            assert image.shape == (3, 64, 64) and image.dtype == torch.float32
            assert image.mean((1, 2)).argmax() == label


def test_labels_of_both_splits_are_places_of_the_folders_of_train(root):
    check(TinyImageNet(str(root), num_classes=3), [2, 1, 0])


def test_a_validation_split_in_folders_is_read(root):
    (root / 'val/val_annotations.txt').unlink()
    for number, name in enumerate(reversed(COLOURS)):
        folder = root / 'val' / name
        folder.mkdir()
        (root / f'val/images/val_{number}.JPEG').rename(folder / f'{number}.JPEG')
    (root / 'val/images').rmdir()
    check(TinyImageNet(str(root), num_classes=3), [0, 1, 2])


def test_images_are_resized(root):
    data = TinyImageNet(str(root), num_classes=3, image_size=32)
    assert {split[0][0].shape for split in data.values()} == {(3, 32, 32)}


def test_what_is_missing_is_named(root, tmp_path):
    assert 'set configs.dataset.num_classes 3' in refused(root, num_classes=9)
    (root / 'val/images/val_1.JPEG').unlink()
    assert 'val_1.JPEG is missing' in refused(root)
    (root / 'val/val_annotations.txt').unlink()
    assert 'val_annotations.txt is missing' in refused(root)
    assert 'point it at tiny-imagenet-200' in refused(root / 'nowhere')


@pytest.mark.parametrize(
    'line', [b'val_0.JPEG\tn09\t0\t0\t1\t1', b'val_0.JPEG n01', b'', b'val_0.JPEG\tn\xe2']
)
def test_an_annotation_without_a_class_is_named(root, line):
    path = root / 'val/val_annotations.txt'
    path.write_bytes(path.read_bytes() + line + b'\n')
    assert f'line 4 of {path} names no class of train/' in refused(root)


def test_a_broken_image_is_named_or_replaced(root):
    path = root / 'train/n02/images/n02_0.JPEG'
    path.write_bytes(b'no image')
    with pytest.raises(DatasetError, match=str(path)):
        TinyImageNet(str(root), num_classes=3)['train'][2]
    assert TinyImageNet(str(root), num_classes=3, skip_broken=True)['train'][2][1] == 1
