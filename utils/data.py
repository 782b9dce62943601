"""Distribution of samples over ranks: equal shares in training, each sample once in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class TrainShare(Sampler[int]):
    """One rank's share of an epoch: every ``size``-th sample of a common permutation.

    All shares have the same length, so that all ranks make the same number of steps; up to
    ``size - 1`` samples are not used in an epoch.

    Args:
        dataset: The training data.
        rank: This rank.
        size: Number of ranks.
        seed: Seed of the permutation, with ``epoch`` added.
    """

    def __init__(self, dataset: Sized, rank: int, size: int, seed: int) -> None:
        self.total = len(dataset)
        self.rank = rank
        self.size = size
        self.seed = seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.total, generator=generator)
        return iter(order[self.rank :: self.size][: len(self)].tolist())

    def __len__(self) -> int:
        return self.total // self.size


class Until:
    """The batches of ``loader``, until ``finished()``.

    In asynchronous training the last epoch of a worker ends with the last update of all workers.
    """

    def __init__(self, loader: DataLoader, finished: Callable[[], bool]) -> None:
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


def train_loader(
    dataset: Dataset, batch: int, rank: int, size: int, seed: int, processes: int
) -> tuple[DataLoader, TrainShare]:
    """A loader of full batches, as many on each rank. Raises ValueError if there are none."""
    share = TrainShare(dataset, rank, size, seed)  # type: ignore[arg-type]
    if len(share) < batch:
        raise ValueError(
            f'configs.train.batch_size: {len(share)} training samples per worker are fewer than '
            f'one step of {batch}; use smaller batches or fewer workers'
        )
    loader = DataLoader(
        dataset,
        batch,
        sampler=share,
        drop_last=True,
        num_workers=processes,
        persistent_workers=processes > 0,
        pin_memory=processes > 0,
    )
    return loader, share


def evaluation_loader(
    dataset: Dataset, batch: int, rank: int, size: int, processes: int
) -> DataLoader:
    """A loader of each sample on one rank. Shares may differ by one: use no collectives in it."""
    share = range(rank, len(dataset), size)  # type: ignore[arg-type]
    return DataLoader(dataset, batch, sampler=share, num_workers=processes)
