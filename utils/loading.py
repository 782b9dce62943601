"""How batches are loaded: by processes, or by a loader of one's own."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from datasets import DatasetError
from utils.config import ConfigError

START_METHODS = ('fork', 'forkserver', 'spawn')


@dataclass(frozen=True)
class Loading:
    """The settings of torch's loaders.

    Attributes:
        processes: How many processes load data; 0: the training process does.
        start_method: How they are started. None: as Python does by default.
        pinned: Whether batches lie in pinned memory, from which they are copied to a GPU while it
            computes.
    """

    processes: int = 0
    start_method: str | None = None
    pinned: bool = False

    @property
    def forks(self) -> bool:
        """Whether processes are copies of this one, so that starting them takes no time."""
        return (self.start_method or multiprocessing.get_start_method()) == 'fork'

    def arguments(self, persistent: bool) -> dict[str, Any]:
        """Arguments for a DataLoader.

        Args:
            persistent: Whether processes are kept from one pass over the data to the next; they
                always are where starting one takes seconds.
        """
        if not self.processes:
            return {'pin_memory': self.pinned}
        return {
            'num_workers': self.processes,
            'multiprocessing_context': self.start_method,
            'persistent_workers': persistent or not self.forks,
            'pin_memory': self.pinned,
            'worker_init_fn': apart,
        }

    def check(self, dataset: Any) -> None:
        """Raise ConfigError for a data set that cannot be sent to a process that loads data."""
        if not self.processes or self.forks:
            return
        for each in parts(dataset):
            try:
                pickle.dumps(each)
            except (pickle.PicklingError, AttributeError, TypeError, ImportError) as error:
                method = self.start_method or multiprocessing.get_start_method()
                raise ConfigError(
                    f'configs.data.start_method = {method!r}: the data set cannot be sent to a '
                    f'process that is started so ({error}); define its classes and functions in a '
                    "module that the config file imports, or use 'fork' or configs.data.num_workers"
                    ' 0'
                ) from error


IN_PLACE = Loading()  # by the training process


def parts(value: Any, depth: int = 3) -> Iterator[Any]:
    """The class of an object, or a function itself, and those of what it holds; no data."""
    if isinstance(value, type) or (callable(value) and hasattr(value, '__qualname__')):
        yield value
        return
    yield type(value)
    if depth and not isinstance(value, Tensor):
        for each in vars(value).values() if hasattr(value, '__dict__') else ():
            yield from parts(each, depth - 1)


def apart(_number: int) -> None:
    """Move this process, which loads data, to a process group of its own.

    A launcher signals the group of a rank. The rank acts on that at the end of its step, and needs
    its processes until then; it ends them itself.

    Args:
        _number: Of this process among those of its rank.
    """
    os.setpgid(0, 0)


class Batches:
    """The batches of a loader that ``configs.data.loader`` makes, checked one by one.

    Args:
        loader: Gives the batches of one epoch each time it is iterated over.
        dataset: The training data.
        order: This rank's samples, of which ``order.skipped`` are left out.
        batch_size: Samples of a batch.
    """

    def __init__(self, loader: Iterable[Any], dataset: Any, order: Any, batch_size: int) -> None:
        if not isinstance(loader, Iterable):
            raise ConfigError(
                f'configs.data.loader: it returned a {type(loader).__name__}; return an object '
                'that gives the batches of an epoch each time it is iterated over'
            )
        self._loader, self._order = loader, order
        self.dataset = dataset
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self._order) // self.batch_size

    def __iter__(self) -> Iterator[Any]:
        expected = (len(self._order) - self._order.skipped) // self.batch_size
        number = 0
        for batch in itertools.islice(self._loader, expected):
            self._check(batch)
            yield batch
            number += 1
        if number < expected:
            raise DatasetError(
                f'configs.data.loader: it gave {number} batches, and the rest of this epoch has '
                f'{expected} of {self.batch_size} samples on this worker'
            )

    def _check(self, batch: Any) -> None:
        """Raise DatasetError unless it is a pair of tensors with as many samples as configured."""
        sizes = [len(part) if isinstance(part, Tensor) else None for part in batch]
        if sizes != [self.batch_size] * 2:
            shown = ', '.join(
                str(list(part.shape)) if isinstance(part, Tensor) else type(part).__name__
                for part in batch
            )
            raise DatasetError(
                f'configs.data.loader: a batch is ({shown}); return (inputs, targets), tensors of '
                f'{self.batch_size} samples (configs.train.batch_size × '
                'configs.train.num_batches_per_step)'
            )
