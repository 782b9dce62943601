"""A config file: the digits of configs/digits/, of which each batch takes some time.

So that a run of a small model lasts long enough for many faults. The seconds are read from a file,
which may change while workers train.
"""

import time
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from datasets import Digits
from utils.config import Config, configs


class Paced(Dataset[Any]):
    """The samples of ``dataset``, where each batch takes the seconds that ``file`` holds."""

    def __init__(self, dataset: Any, file: str) -> None:
        self.dataset, self.file = dataset, Path(file)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return a batch, after a while."""
        time.sleep(float(self.file.read_text()))
        return self.dataset.__getitems__(indices)


def paced_digits(pace_file: str) -> dict[str, Any]:
    """Return the digits, the training split paced."""
    digits = Digits()
    return {'train': Paced(digits['train'], pace_file), 'test': digits['test']}


configs.dataset = Config(paced_digits, pace_file='')
