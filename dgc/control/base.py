"""The interface of controls: what chooses the densities of buckets during training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.engines.base import Engine
from dgc.sparse import Sparse
from dgc.state import Entries, Resize, Values
from dgc.volume import Volume


class Control(ABC):
    """Multiplies the scheduled density of each bucket by a factor, which it chooses from time to
    time, from sums over all ranks.

        observe   in each step, of each bucket that is compressed: notes what this rank measures
        decide    in each step that is not skipped, after all buckets: where notes are complete,
                  adds them up over the ranks, and chooses the factors of the steps to come

    A step is an exchange here: a DDP hook has one for each backward pass that sends, and an
    optimizer that evaluates a closure one for each evaluation.

    Notes and factors are plain values in the state of the bucket: they are saved, restored where a
    step is skipped, and alike on all ranks but for the notes of the present window.

    Attributes:
        initial: The factor before the first decision.
    """

    initial: float = 1.0

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare the notes and the factor of a bucket."""
        return {'control': Values(Resize.REPLICATED)} if spec.schedule is not None else {}

    def density(self, bucket: Bucket, scheduled: float | None) -> float | None:
        """Return the density of a step: the scheduled one times the bucket's factor, at most 1."""
        if scheduled is None:
            return None
        held = values(bucket)
        held['scheduled'] = scheduled
        return float(min(1.0, scheduled * held.get('factor', self.initial)))

    @abstractmethod
    def observe(self, bucket: Bucket, corrected: Tensor, selected: Sparse) -> None:
        """Note what this rank measures of a bucket. Called on the engine's thread.

        Args:
            bucket: Whose state holds the notes.
            corrected: Residual + gradient, ``[n]``; not to be changed.
            selected: The message, which is still part of it.
        """

    @abstractmethod
    def decide(self, buckets: Sequence[Bucket], engine: Engine, volume: Volume) -> None:
        """Choose the factors of the steps to come. A collective, where notes are complete: in the
        same steps on all ranks.

        Args:
            buckets: All of them.
            engine: Adds up over the ranks.
            volume: Computes the bytes of a density.
        """


def values(bucket: Bucket) -> dict[str, Any]:
    """Return the notes and the factor of a compressible bucket."""
    held: dict[str, Any] = bucket.state['control']['control']
    return held


def controlled(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the buckets whose density is chosen."""
    return [bucket for bucket in buckets if bucket.spec.schedule is not None]
