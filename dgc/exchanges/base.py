"""What every exchange offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.engines.base import Engine
from dgc.sparse import Sparse

FLOAT32_BYTES = 4


class Exchanged(NamedTuple):
    """What an exchange came to.

    parts: what adds up to the sum over the workers, in this order: bit-identical on all of them.
        A dense part is alone, and in the bucket's ``total``.
    left_out: what of that the sum lacks after all, rounded off or cut on the way, for its memory
        to keep; ``None`` for nothing. An index may be there twice: it is something to add.
    sent: what was delivered of what this worker handed over, for its memory to forget; ``None``
        for all of it.
    """

    parts: Sequence[Sparse]
    left_out: Sparse | None
    sent: Sparse | None = None


class Exchange(ABC):
    """Sums one message a worker over all workers.

    Plain blocking code: it runs on the thread that owns the engine, beside the backward pass.
    Every worker applies the same decoded bytes, its own part included, and every cut and every
    rounding ends in exactly one worker's ``left_out``. All workers make the same calls of the
    engine, whatever their data: ``send_recv`` with nobody where there is nothing to say.

    loses: some of what it cuts is kept by nobody.
    selects: it cuts the corrected gradient itself, and is handed all of it as a dense message. A
        dense message shares the memory's storage, which is not to be changed.
    """

    selects = False
    loses = False

    def check(self, engine: Engine, device: torch.device | str = 'cpu') -> None:
        """Raise ValueError where so many workers, so placed, cannot be served; alike on all.

        device: of the tensors that the engine carries.
        """

    def prepare(self, bucket: Bucket, engine: Engine, healthy: bool) -> bool:
        """Sum into ``bucket.gradient`` what must be summed before anything is kept back.

        healthy: whether this worker's gradient is finite. Returns whether what is there is now.
        Called for every bucket that may be sparse, while it is dense too.
        """
        return healthy

    @abstractmethod
    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """The sum of every worker's ``sparse``."""

    @abstractmethod
    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """Bytes that the busiest worker sends for ``k`` of ``numel`` elements: the closed form."""

    def pays(self, numel: int, k: int, codec: Codec, workers: int) -> bool:
        """Whether that is less than a dense all-reduce of ``numel`` elements would send."""
        return self.bytes_sent(numel, k, codec, workers) < ring_bytes(numel, workers)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same choices."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""


def ring_bytes(numel: int, workers: int) -> float:
    """``2·4n·(P-1)/P``: what a ring all-reduce of float32 ``[n]`` has each worker send."""
    return 2 * FLOAT32_BYTES * numel * (workers - 1) / workers
