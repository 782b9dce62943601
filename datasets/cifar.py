"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 50,000 training and 10,000 test images, 32x32."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

from datasets.cifar_files import RELEASES, Release, check, read
from datasets.download import fetch_once
from datasets.errors import DatasetError, check_available
from datasets.images import Images

__all__ = ['CIFAR']

MEAN = {10: (0.4914, 0.4822, 0.4465), 100: (0.5071, 0.4865, 0.4409)}
STD = {10: (0.2470, 0.2435, 0.2616), 100: (0.2673, 0.2564, 0.2762)}
PAD = 4  # He et al., CVPR 2016, section 4.2: pad by 4, crop and mirror at random


class CIFAR(dict[str, Dataset]):
    """{'train', 'test'}: float32 images [3, image_size, image_size] and labels.

    Args:
        root: Folder of `cifar-10-batches-py` or `cifar-100-python`, also for the download.
        num_classes: 10 for CIFAR-10, 100 for CIFAR-100.
        image_size: Side of the images, to which they are resized.
        download: Whether to download missing data. One process does, the others wait for it.
        verify: Whether to refuse files that differ from the published ones, instead of warning.
        num_train, num_test: Number of images to use, from the first on. None: all.

    Raises:
        DatasetError: If the data is missing or damaged, or a setting is invalid.
    """

    def __init__(
        self,
        root: str = './data/cifar10',
        num_classes: int = 10,
        image_size: int = 32,
        download: bool = True,
        verify: bool = True,
        num_train: int | None = None,
        num_test: int | None = None,
    ) -> None:
        if num_classes not in RELEASES:
            raise DatasetError.about(
                'num_classes', num_classes, 'there is no such CIFAR', 'choose 10 or 100'
            )
        release = RELEASES[num_classes]
        folder = Path(root).expanduser() / release.folder
        if not folder.is_dir():
            _obtain(release, folder, root, download)
        check(release, folder, verify)
        mean, std = ([255 * part for part in parts[num_classes]] for parts in (MEAN, STD))
        splits = {}
        for split, number in (('train', num_train), ('test', num_test)):
            images, labels = read(release, folder, split)
            check_available(f'num_{split}', number, len(labels), 'images')
            splits[split] = Images(
                torch.from_numpy(images[:number]),
                labels[:number],
                mean,
                std,
                pad=PAD if split == 'train' else 0,
                flip=split == 'train',
                size=image_size,
            )
        super().__init__(splits)


def _obtain(release: Release, folder: Path, root: str, download: bool) -> None:
    """Download the release. Raises DatasetError, with a remedy, where that fails."""
    remedy = f'point it at the folder that holds {release.folder}'
    if not download:
        raise DatasetError.about(
            'root',
            root,
            f'{folder} does not exist',
            f'{remedy}, or set configs.dataset.download True',
        )
    try:
        fetch_once(folder, release.fetch)
    except (OSError, RuntimeError) as error:  # no network, a full disk, a truncated archive
        raise DatasetError.about(
            'root', root, f'the download failed ({error})', f'{remedy}, or try again'
        ) from error
