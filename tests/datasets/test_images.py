"""Images held in memory: what augmentation may and may not do to them."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset

from datasets.images import Images


@pytest.fixture
def pixels():
    return torch.randint(1, 256, (20, 3, 6, 6), dtype=torch.uint8)


def make(pixels, **settings):
    settings = {'mean': (0, 0, 0), 'std': (1, 1, 1), **settings}
    return Images(pixels, range(len(pixels)), **settings)


def test_without_augmentation_images_are_only_normalised(pixels):
    data = make(pixels, mean=(1, 2, 3), std=(4, 5, 6))
    image, label = data[7]
    assert label == 7
    assert image.dtype == torch.float32
    for channel, (mean, std) in enumerate(((1, 4), (2, 5), (3, 6))):
        torch.testing.assert_close(image[channel], (pixels[7, channel].float() - mean) / std)


def test_every_augmented_image_is_a_crop_of_its_padded_image_or_of_its_mirror(pixels):
    data = make(pixels, pad=2, flip=True)
    padded = F.pad(pixels, (2,) * 4).float()
    seen = set()
    for _ in range(40):
        for image, label in data.__getitems__(list(range(20))):
            crops = {
                (top, left, mirrored): crop.flip(2) if mirrored else crop
                for top in range(5)
                for left in range(5)
                for mirrored in (False, True)
                for crop in [padded[label, :, top : top + 6, left : left + 6]]
            }
            found = [where for where, crop in crops.items() if torch.equal(crop, image)]
            assert len(found) == 1
            seen.update(found)
    assert len(seen) == 50, 'each of 5 x 5 shifts and 2 mirrors occurs'


def test_pad_alone_never_mirrors_and_flip_alone_never_shifts(pixels):
    flipped = make(pixels, flip=True)
    for image, label in flipped.__getitems__(list(range(20))):
        original = pixels[label].float()
        assert torch.equal(image, original) or torch.equal(image, original.flip(2))
    ramp = torch.arange(1, 7, dtype=torch.uint8).expand(20, 1, 6, 6)
    for image, _ in make(ramp, mean=(0,), std=(1,), pad=1).__getitems__(list(range(20))):
        middle = image[0, 2]
        assert middle[3] > middle[2], 'left is still left'


def test_the_global_seed_repeats_an_epoch_and_another_does_not(pixels):
    def epoch(seed):
        torch.manual_seed(seed)
        loader = DataLoader(make(pixels, pad=2, flip=True), batch_size=8, shuffle=True)
        return torch.cat([images for images, _ in loader])

    assert torch.equal(epoch(3), epoch(3))
    assert not torch.equal(epoch(3), epoch(4))


def test_loaders_subsets_and_single_images_agree(pixels):
    data = make(pixels)
    images, labels = next(iter(DataLoader(data, batch_size=20)))
    assert images.shape == (20, 3, 6, 6)
    assert labels.dtype == torch.int64
    assert torch.equal(images, torch.stack([data[i][0] for i in range(20)]))
    images, labels = next(iter(DataLoader(Subset(data, [5, 3]), batch_size=2)))
    assert labels.tolist() == [5, 3]
    assert torch.equal(images[0], data[5][0])


def test_loader_processes_augment_differently_and_repeatably(pixels):
    def epoch():
        torch.manual_seed(0)
        same = pixels[:1].expand(16, -1, -1, -1)
        loader = DataLoader(make(same, pad=2, flip=True), batch_size=8, num_workers=2)
        return [images for images, _ in loader]

    first, second = epoch()
    assert not torch.equal(first, second)
    assert torch.equal(torch.cat([first, second]), torch.cat(epoch()))


def test_images_are_resized_last(pixels):
    image, _ = make(pixels, pad=1, size=12)[0]
    assert image.shape == (3, 12, 12)
    constant = torch.full((1, 3, 6, 6), 9, dtype=torch.uint8)
    torch.testing.assert_close(make(constant, size=9)[0][0], torch.full((3, 9, 9), 9.0))


def test_what_is_held_in_memory_is_never_changed(pixels):
    before = pixels.clone()
    make(pixels, mean=(9, 9, 9), pad=2, flip=True).__getitems__(list(range(20)))
    assert torch.equal(pixels, before)


@pytest.mark.parametrize('settings', [{}, {'pad': 2}, {'flip': True}, {'pad': 1, 'flip': True}])
def test_a_batch_is_what_single_crops_are_with_the_same_random_numbers(pixels, settings):
    """To the bit: the order of the random numbers is part of what a seed means."""
    indices = [3, 3, 19, 0, 7]
    pad, flip = settings.get('pad', 0), settings.get('flip', False)
    data = make(pixels, mean=(9, 8, 7), std=(3, 5, 7), **settings)
    torch.manual_seed(5)
    batch = data.__getitems__(indices)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    if settings:
        top, left = torch.randint(2 * pad + 1, (2, len(indices), 1)).tolist()
    mirrored = (torch.rand(len(indices), 1) < 0.5).tolist() if flip else None
    assert torch.equal(torch.get_rng_state(), after)
    for place, index in enumerate(indices):
        image = F.pad(pixels[index], (pad,) * 4)
        if settings:
            image = image[:, top[place][0] :, left[place][0] :][:, :6, :6]
        if mirrored is not None and mirrored[place][0]:
            image = image.flip(2)
        expected = (image.float() - data.mean) / data.std
        assert torch.equal(batch[place][0], expected)
        assert batch[place][1] == index == int(batch.targets[place])


def test_a_batch_is_a_sequence_of_pairs_cut_from_its_tensors(pixels):
    batch = make(pixels).__getitems__([4, 2, 9])
    assert len(batch) == 3
    assert [label for _, label in batch] == [label for _, label in batch[:]] == [4, 2, 9]
    assert [label for _, label in batch[1:]] == [2, 9]
    assert batch[0][0].data_ptr() == batch.inputs.data_ptr()
    assert batch.inputs.is_contiguous()
