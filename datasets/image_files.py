"""Images in folders, one for each class: root/<class>/**/*.jpeg, read when they are needed."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from datasets.errors import DatasetError

__all__ = ['ImageFiles']

ENDINGS = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif', '.tiff', '.webp')

log = logging.getLogger(__name__)


class ImageFiles(Dataset[tuple[Any, int]]):
    """Pairs (image, class), in the order of torchvision's ImageFolder.

    Hidden files and folders are ignored, such as .ipynb_checkpoints, or ._a.jpeg of macOS.

    Args:
        folder: Holds one folder for each class.
        transform: Applied to the PIL image.
        skip_broken: Whether an image that cannot be read is replaced by the next one, with a line
            that names it.

    Attributes:
        classes: Names of the folders; the class of an image is the place of its folder.
        samples: Path and class of each image.

    Raises:
        OSError: If there is no folder, or a class without images.
        DatasetError: From an item, if the image cannot be read.
    """

    def __init__(
        self, folder: Path, transform: Callable[[Any], Any], skip_broken: bool = False
    ) -> None:
        self.folder, self.transform, self.skip_broken = folder, transform, skip_broken
        self.classes = sorted(path.name for path in visible(folder) if path.is_dir())
        if not self.classes:
            raise FileNotFoundError(f'there are no folders in {folder}')
        found = [list(images(folder / name)) for name in self.classes]
        empty = [name for name, paths in zip(self.classes, found, strict=True) if not paths]
        if empty:
            raise FileNotFoundError(f'there are no images in {folder / empty[0]}')
        self.samples = [(path, place) for place, paths in enumerate(found) for path in paths]

    @classmethod
    def of(
        cls,
        folder: Path,
        classes: list[str],
        samples: list[tuple[str, int]],
        transform: Callable[[Any], Any],
    ) -> 'ImageFiles':
        """The images of a list of paths and classes, which need not lie in folders of classes."""
        found = cls.__new__(cls)
        found.folder, found.transform, found.skip_broken = folder, transform, False
        found.classes, found.samples = classes, samples
        return found

    def keep_classes(self, count: int) -> None:
        """Drop the images of all classes but the first ``count``."""
        self.samples = [sample for sample in self.samples if sample[1] < count]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        for step in range(len(self)):
            # IndexError for an index out of range: it ends a loop over the dataset.
            path, place = self.samples[(index + step) % len(self) if step else index]
            try:
                return self.transform(self._load(path)), place
            except DatasetError as error:
                if not self.skip_broken:
                    raise
                # As an error: ranks above 0 print no warnings, and each reads other images.
                log.error('%s is skipped: it cannot be read (%s)', path, error.__cause__)
        raise DatasetError(f'configs.dataset.root: no image in {self.folder} can be read')

    def _load(self, path: str) -> Any:
        """The PIL image. Raises DatasetError if it cannot be read."""
        from torchvision.datasets.folder import default_loader  # takes a second to import

        try:
            return default_loader(path)
        except Exception as error:  # PIL raises OSError, SyntaxError, ValueError and others
            raise DatasetError.about(
                'root',
                str(self.folder.parent),
                f'{path} is no image that can be read ({str(error) or type(error).__name__})',
                'replace or remove it, or set configs.dataset.skip_broken True, which replaces '
                'training images',
            ) from error


def visible(folder: Path) -> Iterator[Path]:
    """What is in a folder, without hidden files and folders."""
    return (path for path in folder.iterdir() if not path.name.startswith('.'))


def images(folder: Path) -> Iterator[str]:
    """The images in a folder and the folders below it, sorted as by torchvision."""
    hidden = len(folder.parts)
    for here, _, names in sorted(os.walk(folder, followlinks=True)):
        if any(part.startswith('.') for part in Path(here).parts[hidden:]):
            continue
        for name in sorted(names):
            if name.lower().endswith(ENDINGS) and not name.startswith('.'):
                yield os.path.join(here, name)  # noqa: PTH118 (a Path each takes 1 GB more)
