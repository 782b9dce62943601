"""Values as floating-point numbers of four bits with a scale per block (E2M1 and E3M0)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from dgc.codec.raw import pack, typed, unpack
from dgc.codec.values.base import FLOAT32_MAX, FLOAT32_TINY, SCALE, Contraction, ValueCoding
from dgc.codec.values.linear import check_scales

BLOCK = 64
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # OCP Microscaling Formats, version 1.0
E3M0 = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # Streaming DiLoCo, arXiv 2501.18512


class Float4(ValueCoding):
    """A sign and one of eight magnitudes of a floating-point format, times the scale of a block.

    First one float32 per block of 64 values, its largest magnitude divided by the largest of the
    format. Then four bits per value, the first in the lowest bits of the first byte: 8 for a
    negative one, and the number of the nearest magnitude (of two that are equally near, the
    smaller). A block that holds a value that is not finite has a scale of NaN and decodes to NaN.

    The largest of a block of d is exact. Any other is off by at most a third of itself, or, below
    the smallest magnitude m of the format, by m/2 scales: delta = 8/9 - (d - 1)·(m/2)²/top².

    Args:
        name: As in settings.
        code: As in the header of a message.
        magnitudes: Of the format, ascending from 0.
    """

    error: Contraction

    def __init__(self, name: str, code: int, magnitudes: Sequence[float]) -> None:
        self.name = name
        self.code = code
        self._magnitudes = torch.tensor(magnitudes, dtype=torch.float32)
        self._between = (self._magnitudes[1:] + self._magnitudes[:-1]) / 2
        self.top = magnitudes[-1]
        self.error = Contraction(8 / 9 - (BLOCK - 1) * (magnitudes[1] / 2 / self.top) ** 2)

    def capacity(self, k: int) -> int:
        """Return 4 bytes per block and ``k/2``, rounded up."""
        return SCALE * blocks(k) + -(-k // 2)

    def encode(self, values: Tensor, seed: int = 0) -> Tensor:
        """See :meth:`ValueCoding.encode`."""
        grouped = pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
        largest = grouped.abs().amax(1)
        # The floor keeps the scale a normal float32 number, by which all devices divide alike.
        scales = (largest / self.top).clamp(min=FLOAT32_TINY)
        scales = scales.where(largest.isfinite(), torch.nan)
        scaled = (grouped.abs() / scales.unsqueeze(1)).nan_to_num(0).flatten()[: len(values)]
        numbers = torch.bucketize(scaled, self._between.to(values.device)).to(torch.uint8)
        fields = numbers | (values < 0).to(torch.uint8) << 3
        return torch.cat([scales.view(torch.uint8), pack(fields, 4)])

    def decode(self, section: Tensor, count: int) -> Tensor:
        """See :meth:`ValueCoding.decode`."""
        end = SCALE * blocks(count)
        scales = typed(section[:end], torch.float32)
        check_scales(bool((scales.isnan() | ((scales > 0) & scales.isfinite())).all()))
        fields = unpack(section[end:], 4)[:count]
        magnitudes = self._magnitudes.to(section.device)[(fields & 7).long()]
        values = magnitudes * scales.repeat_interleave(BLOCK)[:count]
        # The scale was rounded too, so its product may pass the largest float32.
        values.clamp_(max=FLOAT32_MAX)
        return values.where(fields < 8, -values)


def blocks(k: int) -> int:
    """Return the number of blocks that ``k`` values fill."""
    return -(-k // BLOCK)
