"""Small images held in memory, and augmented a batch at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ['Batch', 'Images']


class Batch(Sequence[tuple[Tensor, int]]):
    """The samples of a batch as pairs (image, label), cut from two tensors when they are asked for.

    A loader that knows this class takes the tensors, and copies no image again.

    Attributes:
        inputs: float32 [B, C, S, S].
        targets: int64 [B].
    """

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Batch(self.inputs[place], self.targets[place])
        return self.inputs[place], int(self.targets[place])


class Images(Dataset[tuple[Tensor, int]]):
    """Pairs (image float32 [C, S, S], label) cut from uint8 images [N, C, H, H] held in memory.

    Random numbers come from torch's global generator, so that `torch.manual_seed` repeats a run.
    A DataLoader calls `__getitems__` for whole batches, at a fraction of the cost of single images.

    Args:
        images: uint8 [N, C, H, H].
        labels: N classes.
        mean: Of each channel, in units of the uint8 values.
        std: Of each channel, in the same units.
        pad: Width of the zeros around an image, from which a crop of its own size is drawn.
        flip: Whether to mirror each image left to right with probability 1/2.
        size: S. Images are resized where it differs from H.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
        pad: int = 0,
        flip: bool = False,
        size: int | None = None,
    ) -> None:
        self.images = images
        self.labels = list(labels)
        self.mean = torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)
        self.std = torch.tensor(std, dtype=torch.float32).view(-1, 1, 1)
        self.pad = pad
        self.flip = flip
        self.size = size

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> Batch:
        """The samples of these indices, augmented together."""
        targets = torch.tensor([self.labels[index] for index in indices])
        batch = self.images.numpy()[indices]  # [B, C, H, H]
        if self.pad or self.flip:
            batch = self._augment(batch)
        pixels = torch.from_numpy(batch).sub(self.mean).div_(self.std)
        if self.size not in (None, pixels.shape[-1]):
            pixels = F.interpolate(pixels, size=self.size, mode='bilinear', antialias=True)
        return Batch(pixels, targets)

    def _augment(self, batch: np.ndarray) -> np.ndarray:
        """Crop and mirror each image at random: uint8 [B, C, H, H].

        NumPy copies the windows row by row; torch would gather each pixel by an index of 8 bytes.
        """
        count, channels, side, _ = batch.shape
        top, left = torch.randint(2 * self.pad + 1, (2, count, 1)).flatten(1).numpy()
        mirrored = (torch.rand(count, 1) < 0.5).flatten().numpy() if self.flip else None
        if self.pad:
            inside = slice(self.pad, self.pad + side)
            padded = np.zeros((count, channels, *[side + 2 * self.pad] * 2), batch.dtype)
            padded[:, :, inside, inside] = batch
            windows = sliding_window_view(padded, (side, side), axis=(2, 3))
            batch = np.ascontiguousarray(windows[np.arange(count), :, top, left])
        if mirrored is not None:
            batch[mirrored] = batch[mirrored, ..., ::-1]
        return batch
