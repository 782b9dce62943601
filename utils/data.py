"""Distribution of samples over ranks: equal shares in training, each sample once in evaluation."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from datasets import DatasetError
from datasets.images import Batch
from utils.checks import naming
from utils.config import Config
from utils.loading import IN_PLACE, Batches, Loading
from utils.seeding import seed_everything

SPLITS = "{'train': …, 'test': …}"
PAIR = '(input, target), both of them tensors, arrays or numbers'


class SampleError(DatasetError):
    """A sample that cannot be read. Its cause is the exception that the data set raised."""


class Located(Dataset[Any]):
    """The samples of a data set, whose exceptions name the split and the sample."""

    def __init__(self, dataset: Any, split: str) -> None:
        self.dataset = dataset
        self.split = split

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        """All samples, in order. Python's own loop ends with an IndexError, which is none here."""
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except DatasetError:  # names the file
            raise
        except Exception as error:
            raise SampleError(
                f'configs.dataset: sample {index} of {self.split!r} cannot be read: '
                f'{type(error).__name__}: {" ".join(str(error).split())}'
            ) from error

    @property
    def streams(self) -> int | None:
        """In how many streams samples that continue each other are evaluated; None for others."""
        return getattr(self.dataset, 'streams', None)

    @property
    def tokens_per_sample(self) -> int | None:
        """Of a text; None for other data."""
        return getattr(self.dataset, 'tokens_per_sample', None)

    @property
    def __getitems__(self) -> Callable[[list[int]], Any] | None:
        """For a DataLoader, which asks for a whole batch where the data set can give one."""
        several = getattr(self.dataset, '__getitems__', None)
        return several and partial(self._batch, several)

    def _batch(self, several: Callable[[list[int]], Any], indices: list[int]) -> Any:
        try:
            return several(indices)
        except DatasetError:
            raise
        except Exception:
            for index in indices:
                self[index]  # raises SampleError, if the sample is broken by itself
            raise


def build_datasets(configs: Config) -> dict[str, Dataset]:
    """The data of ``configs.dataset`` by split.

    The first sample of each split is read, on a copy of the data set: one that opens its file with
    its first sample must not share it with the processes that load data.

    Raises:
        DatasetError: If it is no dictionary of data sets with a split 'train', a split is empty, or
            a sample is not a pair of what becomes tensors.
    """
    built = configs.dataset.build()
    if not isinstance(built, Mapping):
        raise DatasetError(
            f'configs.dataset: it is a {type(built).__name__}; return a dictionary, {SPLITS}'
        )
    if 'train' not in built:
        names = ', '.join(map(repr, built)) or 'none'
        raise DatasetError(
            f"configs.dataset: there is no split 'train', only {names}; return {SPLITS}"
        )
    for split, dataset in built.items():
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, '__len__') and hasattr(dataset, '__getitem__')
        ):
            raise DatasetError(
                f'configs.dataset: {split!r} is a {type(dataset).__name__}, which has no length '
                'or no samples by number, so that ranks cannot share it; return a '
                'torch.utils.data.Dataset'
            )
        if not len(dataset):
            remedy = 'give it some' + ('' if split == 'train' else ', or leave it out')
            raise DatasetError(f'configs.dataset: {split!r} has no samples; {remedy}')
        check_sample(dataset, split)
    return {split: Located(dataset, split) for split, dataset in built.items()}


def check_sample(dataset: Any, split: str) -> None:
    """Raise DatasetError unless the first sample is a pair of what becomes tensors."""
    with contextlib.suppress(Exception):  # what cannot be copied is read itself
        dataset = copy.copy(dataset)
    sample = Located(dataset, split)[0]
    try:
        batch = default_collate([sample])
    except (TypeError, RuntimeError):
        batch = None
    pair = isinstance(batch, Sequence) and len(batch) == 2
    if not (pair and all(isinstance(part, Tensor) for part in batch)):
        shown = type(sample).__name__
        if isinstance(sample, Sequence) and not isinstance(sample, str):
            shown = f'({", ".join(type(part).__name__ for part in sample)})'
        raise DatasetError(
            f'configs.dataset: a sample of {split!r} is {shown}, and must be {PAIR}; for images '
            'add torchvision.transforms.ToTensor()'
        )


def collate(samples: list[Any]) -> Any:
    """The batch of some samples. Raises DatasetError where they do not fit together."""
    if isinstance(samples, Batch):  # cut from a batch, which is not put together again
        return [samples.inputs, samples.targets]
    try:
        return default_collate(samples)
    except (TypeError, RuntimeError) as error:
        shapes = {str([tuple(getattr(part, 'shape', ())) for part in sample]) for sample in samples}
        raise DatasetError(
            f'configs.dataset: samples of one batch have different shapes or types '
            f'({" and ".join(sorted(shapes)[:3])}); give them all the same, with a transform'
        ) from error


class Drawn(NamedTuple):
    """A sample for a process that loads data.

    Attributes:
        sample: Its index in the data set.
        seed: Of the epoch.
    """

    sample: int
    seed: int


class Seeded(Dataset[Any]):
    """The samples of a data set, each of which has random numbers of its own in each epoch.

    The processes that load data are started again where a run is resumed. A sample's augmentation
    must not depend on how many samples its process has loaded before.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def tokens_per_sample(self) -> int | None:
        """Of a text; None for other data."""
        return getattr(self.dataset, 'tokens_per_sample', None)

    def __getitem__(self, drawn: Drawn) -> Any:
        self._seed(drawn)
        return self.dataset[drawn.sample]

    def __getitems__(self, several: list[Drawn]) -> Any:
        """For a DataLoader: a batch. Where the data set loads it at once, it has one seed."""
        at_once = getattr(self.dataset, '__getitems__', None)
        if at_once is None:
            return [self[drawn] for drawn in several]
        self._seed(several[0])
        return at_once([drawn.sample for drawn in several])

    def _seed(self, drawn: Drawn) -> None:
        seed_everything((drawn.seed * 1_000_000_007 + drawn.sample) % 2**63)


class TrainShare(Sampler[Any]):
    """One rank's share of an epoch: every ``size``-th sample of a common permutation.

    All shares have the same length, so that all ranks make the same number of steps; up to
    ``size - 1`` samples are not used in an epoch.

    Args:
        dataset: The training data.
        rank: This rank.
        size: Number of ranks.
        seed: Seed of the permutation, with ``epoch`` added.

    Attributes:
        epoch: Whose permutation is drawn.
        for_processes: Whether to draw for ``Seeded``, in place of indices.
        skipped: Samples at the beginning of this rank's share that are left out, as they were used
            before a checkpoint. The length stays that of the whole share.
    """

    def __init__(self, dataset: Sized, rank: int, size: int, seed: int) -> None:
        self.total = len(dataset)
        self.rank = rank
        self.size = size
        self.seed = seed
        self.epoch = 0
        self.skipped = 0
        self.for_processes = False

    def __iter__(self) -> Iterator[Any]:
        indices = self.order()[self.skipped :]
        if not self.for_processes:
            return iter(indices)
        return (Drawn(index, self.seed + 1_000_003 * self.epoch) for index in indices)

    def order(self) -> list[int]:
        """The samples of this rank in an epoch."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.total, generator=generator)
        return order[self.rank :: self.size][: len(self)].tolist()

    def __len__(self) -> int:
        return self.total // self.size


class StreamShare(TrainShare):
    """One rank's share of samples that continue each other: ``rows`` streams of them, side by side.

    All ranks together cut the data into ``rows * size`` streams of equal length. A batch of
    ``rows`` samples has the next sample of each of this rank's streams, so that row i of a batch
    continues row i of the one before. The order is the same in every epoch. What is left over at
    the end of the data is not used.

    Args:
        dataset, rank, size, seed: See ``TrainShare``.
        rows: Samples of one backward pass.
    """

    def __init__(self, dataset: Sized, rank: int, size: int, seed: int, rows: int) -> None:
        super().__init__(dataset, rank, size, seed)
        self.rows = rows
        self.length = self.total // (size * rows)  # of a stream

    def order(self) -> list[int]:
        """The samples of this rank in an epoch."""
        starts = [(self.rank * self.rows + row) * self.length for row in range(self.rows)]
        return [start + step for step in range(self.length) for start in starts]

    def __len__(self) -> int:
        return self.length * self.rows


class EvaluationStreams(Sampler[list[int]]):
    """Batches of one rank that continue each other, of a number of streams that is the same at any
    number of ranks: so is what is measured.

    The rows of a batch are the streams of this rank. The last streams may be shorter: a batch has
    as many rows as the one before, or fewer, and then the first of them go on.

    Args:
        total: Number of samples, each of which is in one stream.
        streams: Into how many they are cut.
        rank, size: Of this rank, and the number of ranks.
    """

    def __init__(self, total: int, streams: int, rank: int, size: int) -> None:
        self.total = total
        self.length = -(-total // streams)
        self.starts = [
            stream * self.length
            for stream in range(rank, streams, size)
            if stream * self.length < total
        ]

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(len(self)):
            yield [start + step for start in self.starts if start + step < self.total]

    def __len__(self) -> int:
        return min(self.length, self.total - self.starts[0]) if self.starts else 0


class Until:
    """The batches of ``loader``, until ``finished()``.

    In asynchronous training the last epoch of a worker ends with the last update of all workers.
    """

    def __init__(self, loader: DataLoader | Batches, finished: Callable[[], bool]) -> None:
        self.loader = loader
        self.batch_size = loader.batch_size
        self.finished = finished

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            if self.finished():
                return
            yield batch

    def __len__(self) -> int:
        return len(self.loader)


def build_share(
    dataset: Any, batch: int, rank: int, size: int, seed: int, rows: int | None = None
) -> TrainShare:
    """One rank's share of the training data, in streams where samples continue others.

    Args:
        dataset, batch, rank, size, seed, rows: See ``train_loader``.

    Raises:
        ValueError: If it is less than one step.
    """
    if getattr(dataset, 'streams', None) is None:
        share = TrainShare(dataset, rank, size, seed)
    else:
        share = StreamShare(dataset, rank, size, seed, rows or batch)
    if len(share) < batch:
        raise ValueError(
            f'configs.train.batch_size: {len(share)} training samples per worker are fewer than '
            f'one step of {batch}; use smaller batches or fewer workers'
        )
    return share


def train_loader(
    dataset: Dataset,
    batch: int,
    rank: int,
    size: int,
    seed: int,
    loading: Loading = IN_PLACE,
    rows: int | None = None,
) -> tuple[DataLoader, TrainShare]:
    """A loader of full batches, as many on each rank.

    Args:
        dataset: The training data.
        batch: Samples of this rank in a step.
        rank, size: Of this rank, and the number of ranks.
        seed: Of the order.
        loading: The processes that load data.
        rows: Samples of one backward pass, where a step has several. None for ``batch``.

    Raises:
        ValueError: If there are none.
        ConfigError: If the data set cannot be sent to the processes that load data.
    """
    share = build_share(dataset, batch, rank, size, seed, rows)
    loading.check(dataset)
    share.for_processes = loading.processes > 0
    loader = DataLoader(
        Seeded(dataset) if share.for_processes else dataset,
        batch,
        collate_fn=collate,
        sampler=share,
        drop_last=True,
        **loading.arguments(persistent=True),
    )
    return loader, share


def own_loader(
    node: Config,
    dataset: Any,
    batch: int,
    rank: int,
    size: int,
    seed: int,
    rows: int | None = None,
) -> tuple[Batches, TrainShare]:
    """The training batches of the loader that ``configs.data.loader`` makes.

    It is called with `dataset`, the split 'train'; `order`, this rank's samples: it gives their
    numbers in the order of the current epoch, each time it is iterated over; and `batch_size`.

    Raises:
        ValueError: If there are none.
        ConfigError: If the loader refuses its settings, or cannot be iterated over.
    """
    share = build_share(dataset, batch, rank, size, seed, rows)
    with naming(node):
        loader = node.build(dataset=dataset, order=share, batch_size=batch)
    return Batches(loader, dataset, share, batch), share


def evaluation_loader(
    dataset: Dataset, batch: int, rank: int, size: int, loading: Loading = IN_PLACE
) -> DataLoader:
    """A loader of each sample on one rank. Shares may differ in length: use no collectives in it.

    Samples that continue each other come in streams, whose number the data set says.
    """
    total, streams = len(dataset), getattr(dataset, 'streams', None)  # type: ignore[arg-type]
    order: dict[str, Any] = {'batch_size': batch, 'sampler': range(rank, total, size)}
    if streams is not None:
        order = {'batch_sampler': EvaluationStreams(total, streams, rank, size)}
    loading.check(dataset)
    return DataLoader(
        dataset,
        collate_fn=collate,
        **order,
        **loading.arguments(persistent=False),
    )
