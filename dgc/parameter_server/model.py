"""The server's model, and its record of what each worker has of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgc.compressors.base import Compressor
from dgc.corrected import Corrected
from dgc.parameter_server import flat, sections
from dgc.parameter_server.composition import Asynchronous
from dgc.sparse import Sparse


class Model:
    """θ, and for each place θ_w: float32 ``[n]`` a bucket, on the CPU.

    On an update: θ ← θ − update; then the answer is the top part of θ − θ_w, as its codec delivers
    it, and θ_w ← θ_w + answer. The worker adds the same bytes to its parameters, which so equal
    θ_w bit for bit. What the answer left out is still in θ − θ_w the next time. Where the answer
    would be dense, it is θ itself, and θ_w ← θ.
    """

    def __init__(self, flats: list[Tensor], composition: Asynchronous) -> None:
        self.flats = flats
        self.records: dict[int, list[Tensor]] = {}
        self._codec = composition.codec
        self._scratch = [torch.empty_like(values) for values in flats]

    def hand_over(self, place: int) -> list[Sparse]:
        """All of θ, for a worker that begins: θ_w ← θ."""
        self.records[place] = [values.clone() for values in self.flats]
        return [Sparse(values, None, len(values)) for values in self.records[place]]

    def take_in(self, parts: Sequence[Sparse], factor: float) -> None:
        """``θ ← θ − factor · update``."""
        flat.subtract(self.flats, parts, factor)

    def answer(
        self, place: int, choices: Sequence[tuple[str, Compressor, float]]
    ) -> tuple[bytes, int]:
        """The body of an answer, and the number of its elements; ``θ_w ← θ_w + answer``.

        choices: for each bucket its name, what chooses of the difference, and at which ratio.
        """
        body, elements = [], 0
        buckets = zip(self.flats, self.records[place], self._scratch, choices, strict=True)
        for values, record, scratch, (name, compressor, ratio) in buckets:
            difference = torch.sub(values, record, out=scratch)
            part = compressor.select(Corrected(difference, name=f'{place}/{name}'), ratio)
            sent = len(part.values)
            if part.is_dense or sections.is_cheaper_dense(part.numel, sent, self._codec):
                part = Sparse(values, None, part.numel)
            section = sections.write(part, self._codec)
            (delivered,) = sections.read(section, [part.numel], self._codec)
            flat.follow(record, delivered)
            body.append(section)
            elements += len(part.values)
        return b''.join(body), elements
