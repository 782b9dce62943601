"""Tiny ImageNet (Stanford CS231n, 2015): 200 classes, 500 training images of each, 64x64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from datasets.errors import DatasetError
from datasets.image_files import ImageFiles
from datasets.imagenet import MEAN, STD

__all__ = ['TinyImageNet']


class TinyImageNet(dict[str, Dataset]):
    """{'train', 'test'}: float32 images [3, image_size, image_size]; the test split is `val`.

    Args:
        root: Folder of train/<class>/images/, val/images/ and val/val_annotations.txt. A val/ that
            was sorted into folders of classes is read, too.
        num_classes: Number of folders in train/.
        image_size: Side of the images: 64 as they are, others by resizing.
        skip_broken: Whether a training image that cannot be read is replaced by the next one, with
            a line that names it; otherwise it ends the run. Test images are never replaced.

    Raises:
        DatasetError: If files are missing, or name other classes; from a sample, if its image
            cannot be read.
    """

    def __init__(
        self,
        root: str = './data/tiny-imagenet-200',
        num_classes: int = 200,
        image_size: int = 64,
        skip_broken: bool = False,
    ) -> None:
        from torchvision import transforms  # takes a second to import

        to_tensor = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        train = transforms.Compose(
            [
                transforms.RandomResizedCrop(image_size),
                transforms.RandomHorizontalFlip(),
                *to_tensor,
            ]
        )
        test = transforms.Compose([transforms.Resize((image_size, image_size)), *to_tensor])
        folder = Path(root).expanduser()
        try:
            split = ImageFiles(folder / 'train', train, skip_broken)
            held_out = _validation(folder / 'val', test, split.classes)
        except OSError as error:
            raise DatasetError.about(
                'root',
                root,
                str(error),
                'point it at tiny-imagenet-200, with train/<class>/images/*.JPEG, val/images/ and '
                'val/val_annotations.txt',
            ) from error
        if len(split.classes) != num_classes:
            raise DatasetError.about(
                'num_classes',
                num_classes,
                f'{root} holds {len(split.classes)} classes',
                f'set configs.dataset.num_classes {len(split.classes)}',
            )
        super().__init__(train=split, test=held_out)


def _validation(folder: Path, transform: Callable[[Any], Any], classes: list[str]) -> ImageFiles:
    """The images of val/, labelled by val_annotations.txt, or by their folders where there is none.

    Raises:
        OSError: If the folder or an image is missing.
        DatasetError: If a line of the file, or a folder, names no class of the training images.
    """
    annotations = folder / 'val_annotations.txt'
    if not annotations.is_file():
        found = ImageFiles(folder, transform)
        if found.classes != classes:
            raise FileNotFoundError(
                f'{annotations} is missing, and the folders in {folder} are not those of train'
            )
        return found
    place = {name: number for number, name in enumerate(classes)}
    samples = []
    lines = annotations.read_text(encoding='utf-8', errors='replace').splitlines()
    for number, line in enumerate(lines, 1):
        name, label, *_ = [*line.split('\t'), '']
        if label not in place:
            raise DatasetError.about(
                'root',
                str(folder.parent),
                f'line {number} of {annotations} names no class of train/: {line!r}',
                'get the file anew',
            )
        samples.append((str(folder / 'images' / name), place[label]))
    missing = next((path for path, _ in samples if not Path(path).is_file()), None)
    if missing or not samples:
        raise FileNotFoundError(f'{missing or annotations} is missing or empty')
    return ImageFiles.of(folder, classes, samples, transform)
