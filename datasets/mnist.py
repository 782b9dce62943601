"""MNIST (LeCun, Cortes and Burges, 1998): 60,000 training and 10,000 test images, 28x28, grey."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

from datasets.download import fetch_once
from datasets.errors import DatasetError
from datasets.idx import find, read
from datasets.images import Images

__all__ = ['MNIST']

MEAN, STD = 0.1307, 0.3081  # of all training pixels, from 0 to 1
SIDE = 28
PREFIXES = {'train': 'train', 'test': 't10k'}  # of the published files
FOLDERS = ('', 'raw', 'MNIST/raw')  # below the root; torchvision has the last one


class MNIST(dict[str, Dataset]):
    """{'train', 'test'}: float32 images [1, 28, 28] and labels; also of Fashion-MNIST's files.

    Args:
        root: Folder of the four idx files, packed (.gz) or not, or of MNIST/raw/ with them.
        num_classes: Labels lie below it.
        download: Whether to download missing data to MNIST/raw/. One process does, the others wait.
        pad: Largest shift of a training image, in pixels.

    Raises:
        DatasetError: If the data is missing or damaged.
    """

    def __init__(
        self,
        root: str = './data/mnist',
        num_classes: int = 10,
        download: bool = True,
        pad: int = 0,
    ) -> None:
        folder = _folder(Path(root).expanduser())
        if folder is None and download:
            folder = _obtain(Path(root).expanduser())
        if folder is None:
            raise DatasetError.about(
                'root',
                root,
                'there are no files such as train-images-idx3-ubyte[.gz] in it',
                'point it at their folder, or set configs.dataset.download True',
            )
        super().__init__(
            {
                split: Images(
                    *_read(folder, prefix, num_classes),
                    [255 * MEAN],
                    [255 * STD],
                    pad=pad if split == 'train' else 0,
                )
                for split, prefix in PREFIXES.items()
            }
        )


def _folder(root: Path) -> Path | None:
    """The folder at or below the root with training images."""
    folders = (root / name for name in FOLDERS)
    return next((each for each in folders if find(each, 'train-images-idx3-ubyte')), None)


def _read(folder: Path, prefix: str, num_classes: int) -> tuple[torch.Tensor, list[int]]:
    """Images uint8 [N, 1, 28, 28] and N labels. Raises DatasetError for damaged files."""
    images = read(folder, f'{prefix}-images-idx3-ubyte', dimensions=3)
    labels = read(folder, f'{prefix}-labels-idx1-ubyte', dimensions=1)
    if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels):
        raise DatasetError.about(
            'root',
            str(folder),
            f'{prefix}-images-idx3-ubyte holds {" x ".join(map(str, images.shape))} pixels for '
            f'{len(labels)} labels',
            'get the files anew',
        )
    if len(labels) and labels.max() >= num_classes:
        raise DatasetError.about(
            'num_classes',
            num_classes,
            f'{prefix}-labels-idx1-ubyte in {folder} has a label {labels.max()}',
            'set it to the number of classes',
        )
    return torch.from_numpy(images).unsqueeze(1), labels.tolist()


def _obtain(root: Path) -> Path:
    """Download the files, and return their folder. Raises DatasetError where that fails."""
    try:
        fetch_once(root / 'MNIST', _fetch)
    except (OSError, RuntimeError) as error:  # no network, a full disk, a truncated archive
        raise DatasetError.about(
            'root',
            str(root),
            f'the download failed ({error})',
            'point it at a folder with the four files, or try again',
        ) from error
    return root / 'MNIST' / 'raw'


def _fetch(parent: Path) -> None:
    """Download MNIST/raw/ into a folder. Raises OSError or RuntimeError."""
    from torchvision import datasets  # takes a second to import

    datasets.MNIST(str(parent), download=True)
