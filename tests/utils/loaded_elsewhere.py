"""A data set in a module of its own, which processes that are not forked can import."""

from __future__ import annotations

import os

import torch


class Started(torch.utils.data.Dataset):
    """Samples are a random number, and the process in which they are loaded."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[float, int]:
        return float(torch.rand(())), os.getpid()
