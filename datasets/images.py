"""Small images held in memory, and augmented a batch at a time."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ['Images']


class Images(Dataset[tuple[Tensor, int]]):
    """Pairs (image float32 [C, S, S], label) cut from uint8 images [N, C, H, H] held in memory.

    Random numbers come from torch's global generator, so that `torch.manual_seed` repeats a run.
    A DataLoader calls `__getitems__` for whole batches, at a tenth of the cost of single images.

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
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)
        self.pad = pad
        self.flip = flip
        self.size = size

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        batch = self.images[indices]  # [B, C, H, H]
        if self.pad or self.flip:
            batch = self._augment(batch)
        pixels = batch.float().sub_(self.mean).div_(self.std)
        if self.size not in (None, pixels.shape[-1]):
            pixels = F.interpolate(pixels, size=self.size, mode='bilinear', antialias=True)
        return list(zip(pixels.unbind(), (self.labels[i] for i in indices), strict=True))

    def _augment(self, batch: Tensor) -> Tensor:
        """Crop and mirror each image at random, in one gather for the batch: [B, C, H, H]."""
        count, channels, side, _ = batch.shape
        padded = F.pad(batch, (self.pad,) * 4)
        top, left = torch.randint(2 * self.pad + 1, (2, count, 1))
        steps = torch.arange(side)
        columns = steps.expand(count, side)
        if self.flip:
            columns = torch.where(torch.rand(count, 1) < 0.5, side - 1 - steps, steps)
        row_starts = (top + steps) * padded.shape[-1]  # [B, H]
        positions = row_starts[:, :, None] + (left + columns)[:, None, :]  # [B, H, H]
        positions = positions.view(count, 1, -1).expand(-1, channels, -1)
        return padded.flatten(2).gather(2, positions).view(batch.shape)
