"""Whether input keeps up with training on this machine: `python -m bench.input --help`."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.harness.cli import Parser, exit_on_signals, log, non_negative, positive
from tools.harness.spec import write_json
from tools.harness.tables import align, number

PROGRAM = 'bench.input'
EXAMPLES = """\
example: python -m bench.input --threads 2 --json input.json

rows of CIFAR, ResNet-20, which make a few steps in turn, round after round:
  compute                 train.py's loop on one batch, which is loaded before
  train.py                the same loop with its loader: every image is cropped and mirrored
  plain loop              torchvision's transforms of single images, in the training process
  plain loop, 2 processes the same with two processes that load data
  ... channels last       compute and train.py with --configs.data.channels_last True

images/s: the median over the rounds. of compute: the median over the rounds of a row's rate,
divided by that of compute in the same round; channels last: by its own compute row.

rows of a folder of JPEG images of 500 x 375 pixels: how many of them are decoded, cropped to 224
pixels and put into batches per second, by --configs.data.num_workers.
"""
CIFAR = ('compute', 'train.py', 'plain loop', 'plain loop, 2 processes')
LAST = ('compute, channels last', 'train.py, channels last')
ROWS = (*CIFAR, *LAST)
JPEGS, JPEG_SIZE = 64, (500, 375)
BATCH_OF_FILES = 16


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(PROGRAM, 'Measure how many images per second train.py loads.', EXAMPLES)
    add = parser.add_argument
    add('--threads', type=positive, default=2, metavar='N', help='threads that compute (2)')
    add('--rounds', type=positive, default=9, metavar='N', help='turns of each row (9)')
    add('--steps', type=positive, default=8, metavar='N', help='steps of a turn (8)')
    add('--batch', type=positive, default=128, metavar='N', help='images of a step (128)')
    add('--images', type=positive, default=50_000, metavar='N', help='images in memory (50000)')
    add(
        '--workers',
        type=non_negative,
        nargs='*',
        default=[0, 1, 2],
        metavar='N',
        help='processes that decode files, each number in turn (0 1 2); without one: no files',
    )
    add('--json', type=Path, metavar='FILE', help='write the results, too')
    return parser.parse_args(argv)


class Silent:
    """A log that keeps nothing."""

    def place(self, step: int) -> int:
        """The step: there are no curves."""
        return step

    def point(self, *_: Any) -> None:
        """Ignore a number of a step."""

    def epoch(self, *_: Any) -> None:
        """Ignore the numbers of an epoch."""

    histogram = layers = trace = point


class Fixed:
    """The first batch of a loader, `count` times in an epoch."""

    def __init__(self, loader: Any, count: int) -> None:
        self._batch, self._count = next(iter(loader)), count
        self.batch_size = loader.batch_size

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter([self._batch] * self._count)


def images(arguments: argparse.Namespace) -> dict[str, Any]:
    """Random images of CIFAR's size, in memory; an epoch of the training split is one turn."""
    import torch

    from datasets.cifar import MEAN, PAD, STD
    from datasets.images import Images
    from utils.data import Located

    total = max(arguments.images, arguments.batch * arguments.steps)
    pixels = torch.randint(0, 256, (total, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (total,)).tolist()
    mean, std = ([255 * part for part in parts[10]] for parts in (MEAN, STD))
    train = Images(pixels, labels, mean, std, pad=PAD, flip=True)
    test = Images(pixels[:2], labels[:2], mean, std)
    return {'train': Located(train, 'train'), 'test': Located(test, 'test')}


def of_train(
    arguments: argparse.Namespace, data: dict[str, Any], fixed: bool, last: bool
) -> Callable[[], None]:
    """A function that makes the steps of a turn by train.py's loop, at the end of an epoch.

    Args:
        arguments: Of the command line.
        data: By split.
        fixed: Whether all steps have the same batch.
        last: Whether channels come last.
    """
    import torch

    from dgc.engines import LocalEngine
    from train import train_epoch
    from utils.build import build
    from utils.cli import DECLARATIONS
    from utils.config import load
    from utils.progress import EpochHooks

    configs = load([DECLARATIONS.parent / 'cifar/resnet20.py'], root=DECLARATIONS).__copy__()
    configs.data.channels_last = last
    configs.train.batch_size = arguments.batch
    parts, _ = build(configs, data, LocalEngine(), torch.device('cpu'), lambda _: None)
    hooks = EpochHooks()
    if fixed:
        fixed_batches = Fixed(parts.loaders['train'], arguments.steps)
        parts.loaders['train'] = fixed_batches  # type: ignore[assignment]
    else:
        hooks.first_step = len(parts.loaders['train']) - arguments.steps
    return lambda: train_epoch(parts, configs, 0, Silent(), hooks)  # type: ignore[return-value]


def plain(arguments: argparse.Namespace, data: dict[str, Any], workers: int) -> Callable[[], None]:
    """A function that makes the steps of a turn as torchvision's examples do."""
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Subset
    from torchvision import transforms

    from models.cifar import resnet20

    source = data['train'].dataset

    class Single(torch.utils.data.Dataset):  # as torchvision.datasets.CIFAR10
        """Images in memory, each of which is made a PIL image and transformed."""

        def __init__(self) -> None:
            self.pixels = source.images.permute(0, 2, 3, 1).contiguous().numpy()
            self.transform = transforms.Compose(
                [
                    transforms.RandomCrop(32, padding=4),
                    transforms.RandomHorizontalFlip(),
                    transforms.ToTensor(),
                    transforms.Normalize(
                        (source.mean / 255).flatten(), (source.std / 255).flatten()
                    ),
                ]
            )

        def __len__(self) -> int:
            return len(self.pixels)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return self.transform(Image.fromarray(self.pixels[index])), source.labels[index]

    samples = Single()
    model = resnet20().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def turn() -> None:
        chosen = torch.randperm(len(samples))[: arguments.batch * arguments.steps].tolist()
        loader = DataLoader(Subset(samples, chosen), arguments.batch, num_workers=workers)
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return turn


def measure_cifar(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the rows of CIFAR in turn, round after round."""
    data = images(arguments)
    turns = {
        'compute': of_train(arguments, data, fixed=True, last=False),
        'train.py': of_train(arguments, data, fixed=False, last=False),
        'plain loop': plain(arguments, data, 0),
        'plain loop, 2 processes': plain(arguments, data, 2),
        'compute, channels last': of_train(arguments, data, fixed=True, last=True),
        'train.py, channels last': of_train(arguments, data, fixed=False, last=True),
    }
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for each in range(-1, arguments.rounds):  # the first round warms up
        order = list(turns) if each % 2 else list(reversed(turns))
        for name in order:
            start = time.perf_counter()
            turns[name]()
            rate = arguments.batch * arguments.steps / (time.perf_counter() - start)
            if each >= 0:
                rates[name].append(rate)
        log(f'round {each + 1} of {arguments.rounds}')
    return [
        {
            'name': name,
            'images_per_second': statistics.median(found),
            'of_compute': statistics.median(
                own / other for own, other in zip(found, rates[base_of(name)], strict=True)
            ),
            'samples': found,
        }
        for name, found in rates.items()
    ]


def base_of(name: str) -> str:
    """The row of compute alone that a row is compared with."""
    return LAST[0] if name in LAST else CIFAR[0]


def write_jpegs(folder: Path) -> None:
    """Write JPEG images with structure at every scale, as photographs have, in two classes."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    width, height = JPEG_SIZE
    for place in range(JPEGS):
        pixels = np.zeros((height, width, 3))
        for side in (4, 16, 64, 256):
            noise = 128 + generator.normal(0, 256 / side, (side, side, 3)).clip(-128, 127)
            image = Image.fromarray(noise.astype(np.uint8))
            pixels += np.asarray(image.resize(JPEG_SIZE, Image.Resampling.BICUBIC)) - 128.0
        for split in ('train', 'val'):
            path = folder / split / f'class{place % 2}'
            path.mkdir(parents=True, exist_ok=True)
            whole = Image.fromarray((pixels + 128).clip(0, 255).astype(np.uint8))
            whole.save(path / f'{place}.jpeg', quality=90)


def measure_files(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure how many files per second are decoded and cropped, by number of processes."""
    from datasets import ImageNet
    from utils.data import Located, train_loader
    from utils.loading import Loading

    with tempfile.TemporaryDirectory(prefix='dgc') as name:
        write_jpegs(Path(name))
        dataset = Located(ImageNet(name, num_classes=2)['train'], 'train')
        loaders = {
            workers: train_loader(dataset, BATCH_OF_FILES, 0, 1, 0, Loading(workers))[0]
            for workers in arguments.workers
        }
        rates: dict[int, list[float]] = {workers: [] for workers in loaders}
        for each in range(-1, arguments.rounds):  # the first round starts the processes
            for workers, loader in loaders.items():
                start = time.perf_counter()
                count = sum(len(targets) for _, targets in loader)
                if each >= 0:
                    rates[workers].append(count / (time.perf_counter() - start))
        del loaders
    return [
        {
            'name': f'files, {workers} processes',
            'images_per_second': statistics.median(found),
            'samples': found,
        }
        for workers, found in rates.items()
    ]


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as an aligned table."""
    rows = [['', 'images/s', 'of compute']]
    for each in results:
        share = '' if each.get('of_compute') is None else f'{each["of_compute"]:.1%}'
        rows.append([each['name'], number(each['images_per_second'], 0), share])
    return '\n'.join(align(rows, right=True))


def main(argv: Sequence[str]) -> int:
    """Measure and print the tables; return the exit code."""
    arguments = parse(argv)
    exit_on_signals()
    import torch

    torch.set_num_threads(arguments.threads)
    print(f'ResNet-20, {arguments.batch} images a step, {arguments.threads} threads')
    results: list[dict[str, Any]] = []
    for measure in (measure_cifar, *([measure_files] if arguments.workers else [])):
        found = [{'threads': arguments.threads, **each} for each in measure(arguments)]
        results += found
        if arguments.json is not None:
            write_json(arguments.json, results)
        print(table(found), flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
