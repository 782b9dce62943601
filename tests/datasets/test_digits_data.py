"""The digits of scikit-learn: the split."""

import pytest
import torch

from datasets import DatasetError, Digits

pytest.importorskip('sklearn')


def test_shapes_types_and_sizes():
    digits = Digits()
    assert list(digits) == ['train', 'test']
    assert [len(split) for split in digits.values()] == [1437, 360]
    for split in digits.values():
        image, label = split[0]
        assert image.shape == (1, 8, 8)
        assert image.dtype == torch.float32
        assert type(label) is int
        assert set(split.labels) == set(range(10))


def test_pixels_are_standardised():
    images = torch.stack([image for image, _ in Digits(pad=0)['train']])
    assert abs(images.mean().item()) < 0.05
    assert abs(images.std().item() - 1) < 0.05


def test_splits_are_disjoint_and_together_all_1797_digits():
    from sklearn.datasets import load_digits

    split = [
        (*image.flatten().tolist(), label)
        for part in Digits().values()
        for image, label in zip(part.images, part.labels, strict=True)
    ]
    pixels, labels = load_digits(return_X_y=True)
    assert sorted(split) == sorted((*row, label) for row, label in zip(pixels, labels, strict=True))


def test_split_is_stratified():
    digits = Digits()
    for label in range(10):
        held_out = digits['test'].labels.count(label)
        everything = held_out + digits['train'].labels.count(label)
        assert abs(held_out / everything - 360 / 1797) < 0.01


def test_split_follows_its_own_seed_only():
    torch.manual_seed(1)
    first = Digits(seed=0)
    torch.manual_seed(2)
    assert torch.equal(first['test'].images, Digits(seed=0)['test'].images)
    assert not torch.equal(first['test'].images, Digits(seed=1)['test'].images)


def test_only_training_images_are_shifted():
    digits = Digits()
    test = digits['test']
    assert torch.equal(test[0][0], test[0][0])
    shifts = {tuple(digits['train'][0][0].flatten().tolist()) for _ in range(100)}
    assert len(shifts) == 9
    assert len({tuple(Digits(pad=0)['train'][0][0].flatten().tolist()) for _ in range(9)}) == 1


@pytest.mark.parametrize(
    ('settings', 'line'),
    [
        (
            {'test_size': 9},
            'test_size = 9: each of 10 classes is in both splits; choose from 10 to',
        ),
        ({'test_size': 1788}, 'test_size = 1788: each of 10 classes is in both splits; choose'),
        ({'pad': -1}, 'pad = -1: it is a number of pixels; choose 0 or more'),
    ],
)
def test_settings_that_cannot_be_meant(settings, line):
    with pytest.raises(DatasetError, match=f'^configs.dataset.{line}'):
        Digits(**settings)


@pytest.mark.parametrize('test_size', [10, 1787])
def test_the_smallest_splits_have_all_classes(test_size):
    for split in Digits(test_size=test_size).values():
        assert set(split.labels) == set(range(10))
