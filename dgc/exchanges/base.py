"""What every exchange offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.engines.base import Engine
from dgc.sparse import Sparse


class Exchanged(NamedTuple):
    """What an exchange came to.

    parts: what adds up to the sum over the workers, in this order: bit-identical on all of them.
        A dense part is alone, and in the bucket's ``total``.
    left_out: what of this worker's share the sum lacks, for its memory; ``None`` for nothing.
    """

    parts: Sequence[Sparse]
    left_out: Sparse | None


class Exchange(ABC):
    """Sums one message a worker over all workers.

    Plain blocking code: it runs on the thread that owns the engine, beside the backward pass.
    Every worker applies the same decoded bytes, its own part included, and every cut and every
    rounding ends in exactly one worker's ``left_out``.
    """

    def prepare(self, bucket: Bucket, engine: Engine) -> None:
        """Sum into ``bucket.gradient`` what must be summed before anything is kept back."""

    @abstractmethod
    def sum(self, bucket: Bucket, sparse: Sparse, codec: Codec, engine: Engine) -> Exchanged:
        """The sum of every worker's ``sparse``."""

    @abstractmethod
    def bytes_sent(self, numel: int, k: int, codec: Codec, workers: int) -> float:
        """Bytes that one worker sends for ``k`` of ``numel`` elements: the closed form."""
