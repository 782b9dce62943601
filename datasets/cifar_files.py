"""The files of the published CIFAR archives: their addresses, checksums and format."""

import hashlib
import logging
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datasets.errors import DatasetError
from datasets.unpickle import load

__all__ = ['RELEASES', 'Release', 'check', 'read']

SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Release:
    """One archive.

    Attributes:
        files: The MD5 of each file, by split and name.
    """

    archive: str
    archive_md5: str
    folder: str
    label_name: str
    num_classes: int
    files: dict[str, dict[str, str]]

    def fetch(self, parent: Path) -> None:
        """Download the archive and extract it to `parent`. Raises OSError or RuntimeError."""
        # torchvision takes seconds to import, and nothing else here needs it.
        from torchvision.datasets.utils import download_and_extract_archive

        url = f'https://www.cs.toronto.edu/~kriz/{self.archive}'
        download_and_extract_archive(url, str(parent), md5=self.archive_md5)


RELEASES = {
    10: Release(
        'cifar-10-python.tar.gz',
        'c58f30108f718f92721af3b95e74349a',
        'cifar-10-batches-py',
        label_name='labels',
        num_classes=10,
        files={
            'train': {
                'data_batch_1': 'c99cafc152244af753f735de768cd75f',
                'data_batch_2': 'd4bba439e000b95fd0a9bffe97cbabec',
                'data_batch_3': '54ebc095f3ab1f0389bbae665268c751',
                'data_batch_4': '634d18415352ddfa80567beed471001a',
                'data_batch_5': '482c414d41f54cd18b22e5b47cb7c3cb',
            },
            'test': {'test_batch': '40351d587109b95175f43aff81a1287e'},
        },
    ),
    100: Release(
        'cifar-100-python.tar.gz',
        'eb9058c3a382ffc7106e4002c42a8d85',
        'cifar-100-python',
        label_name='fine_labels',
        num_classes=100,
        files={
            'train': {'train': '16019d7e3df5f24257cddd939b257f8d'},
            'test': {'test': 'f0ef6b0ae62326f3e7ffdfab6717acfc'},
        },
    ),
}


def check(release: Release, folder: Path, verify: bool) -> None:
    """Compare the files with the published checksums.

    Raises:
        DatasetError: If a file is missing or, with `verify`, differs. Without `verify` one warning
            names the files that differ.
    """
    published = {
        folder / name: md5 for split in release.files.values() for name, md5 in split.items()
    }
    for path in published:
        if not path.is_file():
            raise _refused(folder, f'{path.name} is missing')
    differing = [path.name for path, md5 in published.items() if _md5(path) != md5]
    if differing and verify:
        raise DatasetError.about(
            'verify',
            verify,
            f'in {folder} the checksum of {differing[0]} is not the published one',
            'delete the folder to download it anew, or set it False to read it as it is',
        )
    if differing:
        logging.getLogger(__name__).warning(
            'configs.dataset.verify = False: in %s the checksums of %s are not the published ones',
            folder,
            ', '.join(differing),
        )


def read(release: Release, folder: Path, split: str) -> tuple[np.ndarray, list[int]]:
    """Images uint8 [N, 3, 32, 32] and N labels. Raises DatasetError for a damaged file."""
    parts = [_read_file(release, folder / name) for name in release.files[split]]
    images = np.concatenate([part for part, _ in parts])
    return images, [label for _, labels in parts for label in labels]


def _read_file(release: Release, path: Path) -> tuple[np.ndarray, list[int]]:
    try:
        entries = load(path)
        images, labels = entries['data'], [int(label) for label in entries[release.label_name]]
        images = images.reshape(len(labels), *SHAPE)
    except (pickle.UnpicklingError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _refused(path.parent, f'{path.name} cannot be read ({error})') from error
    if images.dtype != np.uint8 or not set(labels) <= set(range(release.num_classes)):
        raise _refused(
            path.parent, f'{path.name} does not hold bytes and labels below {release.num_classes}'
        )
    return images, labels


def _refused(folder: Path, problem: str) -> DatasetError:
    return DatasetError.about(
        'root',
        str(folder.parent),
        f'in {folder} {problem}',
        'delete the folder to download it anew, or point to another root',
    )


def _md5(path: Path) -> str:
    with open(path, 'rb') as file:
        digest = hashlib.md5(usedforsecurity=False)
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
