"""Who sees which samples: equal shares in training, every sample once in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class TrainShare(Sampler[int]):
    """One worker's share of an epoch: every ``size``-th sample of a permutation that all share.

    Shares have the same length whatever the length of the dataset, so that no worker waits for a
    step that another does not have; up to ``size - 1`` samples sit an epoch out.
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
    """The batches of ``loader``, for as long as nobody else has finished the training.

    Where workers go each at its own pace, the last epoch of one ends with the last update of all.
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
    """Full batches only, equally many on every rank. Raises ValueError where there is none."""
    share = TrainShare(dataset, rank, size, seed)  # type: ignore[arg-type]
    if len(share) < batch:
        raise ValueError(
            f'configs.train.batch_size: {len(share)} training samples a worker are fewer than '
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
    """Each sample on exactly one rank; shares may differ by one, so nothing in it may wait."""
    share = range(rank, len(dataset), size)  # type: ignore[arg-type]
    return DataLoader(dataset, batch, sampler=share, num_workers=processes)
