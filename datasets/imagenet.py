"""ImageNet (ILSVRC 2012) in the usual folders: root/train/<class>/ and root/val/<class>/."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, Subset

from datasets.errors import DatasetError

__all__ = ['ImageNet']

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESIZE = 256 / 224  # shorter side of a test image ÷ side of its central crop


class ImageNet(dict[str, Dataset]):
    """{'train', 'test'}: float32 images [3, image_size, image_size]; the test split is `val`.

    Args:
        root: Folder of train/<class>/ and val/<class>/.
        num_classes: Number of classes to use, from the first folder name on.
        image_size: Side of the cropped images, in pixels.

    Raises:
        DatasetError: If the folders are missing or hold other classes.
    """

    def __init__(self, root: str, num_classes: int = 1000, image_size: int = 224) -> None:
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
        folders = [
            _folder(root, name, transform) for name, transform in (('train', train), ('val', test))
        ]
        if folders[0].classes != folders[1].classes:
            raise DatasetError.about(
                'root',
                root,
                'train and val hold different classes',
                'give both one folder for each class',
            )
        if len(folders[0].classes) < num_classes:
            raise DatasetError.about(
                'num_classes',
                num_classes,
                f'{root} holds {len(folders[0].classes)} classes',
                'choose as many, or point configs.dataset.root elsewhere',
            )
        train_split, test_split = (_first_classes(folder, num_classes) for folder in folders)
        super().__init__(train=train_split, test=test_split)


def _folder(root: str, name: str, transform: Callable[..., Any]) -> Any:
    """torchvision's ImageFolder. Raises DatasetError, with a remedy, if it cannot be read."""
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(Path(root).expanduser() / name, transform)
    except OSError as error:
        raise DatasetError.about(
            'root',
            root,
            str(error),
            'point it at the folder that holds train/<class>/*.JPEG and val/<class>/*.JPEG',
        ) from error


def _first_classes(folder: Any, num_classes: int) -> Dataset:
    """The images of the first classes, which come first in an ImageFolder."""
    return Subset(folder, range(sum(target < num_classes for target in folder.targets)))
