"""ImageNet (ILSVRC 2012) in the usual folders: root/train/<class>/ and root/val/<class>/."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from datasets.errors import DatasetError
from datasets.image_files import ImageFiles

__all__ = ['ImageNet']

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESIZE = 256 / 224  # shorter side of a test image ÷ side of its central crop


class ImageNet(dict[str, Dataset]):
    """{'train', 'test'}: float32 images [3, image_size, image_size]; the test split is `val`.

    Args:
        root: Folder of train/<class>/ and val/<class>/.
        num_classes: Number of folders in train/ and in val/; hidden ones (.name) are ignored.
        image_size: Side of the cropped images, in pixels.
        subset: Whether to use only the first num_classes folders by name, where there are more.
        skip_broken: Whether a training image that cannot be read is replaced by the next one, with
            a line that names it; otherwise it ends the run. Test images are never replaced.

    Raises:
        DatasetError: If the folders are missing or hold other classes; from a sample, if its image
            cannot be read.
    """

    def __init__(
        self,
        root: str,
        num_classes: int = 1000,
        image_size: int = 224,
        subset: bool = False,
        skip_broken: bool = False,
    ) -> None:
        # torchvision takes a second to import, and the other datasets hardly need it.
        from torchvision import transforms

        to_tensor = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        train = transforms.Compose(
            [
                transforms.RandomResizedCrop(image_size),
                transforms.RandomHorizontalFlip(),
                *to_tensor,
            ]
        )
        test = transforms.Compose(
            [
                transforms.Resize(round(image_size * RESIZE)),
                transforms.CenterCrop(image_size),
                *to_tensor,
            ]
        )
        splits = {
            'train': _read(root, 'train', train, skip_broken),
            'test': _read(root, 'val', test, skip_broken=False),
        }
        _check_classes(root, num_classes, subset, splits['train'].classes, splits['test'].classes)
        for split in splits.values():
            split.keep_classes(num_classes)
        super().__init__(splits)


def _read(root: str, name: str, transform: Callable[[Any], Any], skip_broken: bool) -> ImageFiles:
    """The images of a split. Raises DatasetError, with a remedy, if there are none."""
    try:
        return ImageFiles(Path(root).expanduser() / name, transform, skip_broken)
    except OSError as error:
        raise DatasetError.about(
            'root',
            root,
            str(error),
            'point it at the folder that holds train/<class>/*.JPEG and val/<class>/*.JPEG',
        ) from error


def _check_classes(
    root: str, num_classes: int, subset: bool, train: list[str], val: list[str]
) -> None:
    """Raise DatasetError unless both splits have the same classes, as many as are configured."""
    if train != val:
        name = min(set(train) ^ set(val))
        raise DatasetError.about(
            'root',
            root,
            f'train and val hold different classes ({len(train)} and {len(val)}; {name} is only '
            f'in {"train" if name in train else "val"})',
            'give both one folder for each class',
        )
    if len(train) < num_classes or (len(train) > num_classes and not subset):
        first = f', or subset True for the first {num_classes}' if len(train) > num_classes else ''
        raise DatasetError.about(
            'num_classes',
            num_classes,
            f'{root} holds {len(train)} classes, {train[0]} to {train[-1]}',
            f'set configs.dataset.num_classes {len(train)}{first}, or point configs.dataset.root '
            'elsewhere',
        )
