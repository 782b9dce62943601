"""The 1,797 handwritten digits that come with scikit-learn: real data that needs no download."""

import numpy as np
import torch
from torch.utils.data import Dataset

from datasets.errors import DatasetError
from datasets.images import Images

__all__ = ['Digits']

CLASSES = 10
MEAN, STD = (4.9,), (6.0,)  # of pixels from 0 to 16


class Digits(dict[str, Dataset]):
    """{'train', 'test'}: float32 images [1, 8, 8] and labels 0 to 9 (Alpaydin and Kaynak, 1998).

    Args:
        test_size: Number of test images, with the classes in the same proportions.
        seed: Seed of the choice of test images.
        pad: Largest shift of a training image, in pixels.

    Raises:
        DatasetError: If a class would have no image in a split, or ``pad`` is below 0.
    """

    def __init__(self, test_size: int = 360, seed: int = 0, pad: int = 1) -> None:
        # scikit-learn takes a second to import, and only this dataset needs it.
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        pixels, labels = load_digits(return_X_y=True)
        most = len(labels) - CLASSES
        if not CLASSES <= test_size <= most:
            problem = f'each of {CLASSES} classes is in both splits'
            raise DatasetError.about(
                'test_size', test_size, problem, f'choose from {CLASSES} to {most}'
            )
        if pad < 0:
            raise DatasetError.about('pad', pad, 'it is a number of pixels', 'choose 0 or more')
        images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8).astype(np.uint8))
        rows = train_test_split(
            np.arange(len(labels)), test_size=test_size, random_state=seed, stratify=labels
        )
        train, test = (
            Images(images[part], labels[part].tolist(), MEAN, STD, pad=shift)
            for part, shift in zip(rows, (pad, 0), strict=True)
        )
        super().__init__(train=train, test=test)
