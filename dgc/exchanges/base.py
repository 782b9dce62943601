"""The interface of exchanges, and what they are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import torch

from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.codec import Codec
from dgc.engines.base import Engine
from dgc.exchanges.wire import Wire
from dgc.sparse import Payload, Sparse
from dgc.state import Entries

FLOAT32_BYTES = 4
EITHER = frozenset({Payload.DENSE, Payload.SPARSE})
DENSE_ONLY = frozenset({Payload.DENSE})
SPARSE_ONLY = frozenset({Payload.SPARSE})


class Scale(Enum):
    """By what the sum of an exchange's contributions is divided to give the result.

    WORLD_SIZE: By the number of ranks: the contributions add up to a sum over the ranks.
    CONTRIBUTORS: Each element by the number of contributions that have it. Every message must
        reach every rank unmerged.
    NONE: By nothing: the contributions are the result.
    """

    WORLD_SIZE = 'world size'
    CONTRIBUTORS = 'contributors'
    NONE = 'none'


class Exchanged(NamedTuple):
    """The result of an exchange.

    Attributes:
        contributions: Add up, in this order, to the result before scaling; bit-identical on all
            ranks. All dense or all sparse; the first dense one may lie in the bucket's ``total``.
        error: What the result lacks of this rank's message: quantization error, and truncation
            error of sums that were cut on their way. Goes to this rank's memory; None for nothing.
            An index may occur twice: it is something to add.
        sent: What was delivered of this rank's message, to be removed from its memory; None for
            all of it.
        scale: How the contributions become the result.
        non_finite: Whether some rank's gradient was not finite; the same on all ranks.
        flag: Whether any rank's ``Context.flag`` was set; None where the exchange did not carry it.
    """

    contributions: Sequence[Sparse]
    error: Sparse | None = None
    sent: Sparse | None = None
    scale: Scale = Scale.WORLD_SIZE
    non_finite: bool = False
    flag: bool | None = None


@dataclass(frozen=True)
class Context:
    """The step and the bucket for which an exchange is called.

    Attributes:
        bucket: Whose message is exchanged; ``bucket.state['exchange']`` is this exchange's.
        k: The largest number of elements that a rank selects.
        codec: Writes messages.
        engine: Carries them.
        is_finite: Whether this rank's gradient is. Where not, its message is a NaN at element 0.
        flag: One bit for all ranks, which an exchange may carry in a message that it sends anyway;
            None where there is none to carry.
    """

    bucket: Bucket
    k: int
    codec: Codec
    engine: Engine
    is_finite: bool = True
    flag: bool | None = None

    def wire(self, k: int | None = None) -> Wire:
        """Return what writes and reads messages of at most ``k`` (by default the budget)
        elements."""
        return Wire(self.bucket, self.k if k is None else k, self.codec)

    def within(self, engine: Engine) -> Context:
        """Return the same among the ranks of another engine, such as a group, to which the flag of
        all ranks does not belong."""
        return replace(self, engine=engine, flag=None)

    @property
    def state(self) -> dict[str, Any]:
        """What this exchange keeps of the bucket between steps."""
        found: dict[str, Any] = self.bucket.state.get('exchange', {})
        return found


class Exchange(ABC):
    """Combines one message of each rank into a result that is the same on all ranks.

    Plain blocking code: it runs on the thread that owns the engine, beside the backward pass. Every
    rank applies the same decoded bytes, its own message included. Every truncation and every
    rounding ends in exactly one rank's ``error``. All ranks make the same engine calls, whatever
    their data: ``send_recv`` without source and destination where a rank has nothing to exchange.

    Attributes:
        accepts: Payloads that it takes.
        selects: It selects the elements itself from the corrected gradient, which it gets
            as a whole; a dense message shares the memory's storage, which must not be changed.
        loses: Some truncation error returns to no memory.
        is_estimate: The result estimates the mean gradient; False where it replaces it by something
            else (a vote's signs), so that no gradient is lost.
        approximates: A dense message arrives with an error, apart from that of its coding.
        unbiased: The result's expectation is the mean gradient although only a part is sent, so
            that no error feedback is needed, and none is possible.
        recodes: Several ranks write the same partial sum, so a stochastic coding would give them
            different results.
        feeds_back: It has error feedback of its own, which an unbiased coding would make diverge.
        keeps_selection: The messages that it writes are what the compressor selected, without a
            merge, a cut or a part.
        scale: As in its ``Exchanged``.
    """

    accepts = SPARSE_ONLY
    recodes = False
    feeds_back = False
    selects = False
    loses = False
    is_estimate = True
    approximates = False
    unbiased = False
    keeps_selection = False
    scale = Scale.WORLD_SIZE

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare what it keeps of a bucket between steps (``context.state``)."""
        return {}

    def check(self, engine: Engine, device: torch.device | str = 'cpu') -> None:
        """Raise ValueError, on all ranks, where this number and placement of ranks cannot be
        served.

        Args:
            engine: Its collectives may be used.
            device: Of the tensors that the engine carries.
        """

    def prepare(self, bucket: Bucket, engine: Engine, is_finite: bool) -> bool:
        """Sum into ``bucket.gradient`` what must be summed before error feedback.

        Called for every bucket that may be compressed, also while it is uncompressed.

        Args:
            bucket: Whose gradient is changed in place.
            engine: Carries the sums.
            is_finite: Whether this rank's gradient is finite.

        Returns:
            Whether the gradient is finite afterwards.
        """
        return is_finite

    def writes(self, payload: Payload) -> Payload | None:
        """Return the payload that the codec encodes for messages of ``payload``; None where no
        codec is involved."""
        return payload

    @abstractmethod
    def reduce(self, selected: Sparse, context: Context) -> Exchanged:
        """Combine every rank's ``selected``."""

    @abstractmethod
    def bytes_sent(self, spec: BucketSpec, k: int, codec: Codec, world_size: int) -> float:
        """Return the bytes that the busiest rank sends for a bucket, in closed form.

        Args:
            spec: The bucket.
            k: Elements that a rank selects.
            codec: Of the messages.
            world_size: The number of ranks.
        """

    def is_smaller_than_dense(
        self, spec: BucketSpec, k: int, codec: Codec, world_size: int
    ) -> bool:
        """Return whether it sends fewer bytes than a float32 all-reduce of the bucket."""
        return self.bytes_sent(spec, k, codec, world_size) < ring_bytes(spec.numel, world_size)


def ring_bytes(numel: int, world_size: int) -> float:
    """Return ``2·4n·(P-1)/P``: bytes that a rank sends in a ring all-reduce of float32 ``[n]``."""
    return 2 * FLOAT32_BYTES * numel * (world_size - 1) / world_size


def starts_with_nan(contributions: Sequence[Sparse]) -> bool:
    """Return whether any contribution holds a NaN in its first value.

    A rank whose gradient is not finite sends a NaN at element 0. Every coding carries it, and every
    selection by magnitude counts it as the largest, so it is the first value of some contribution
    on all ranks. On a GPU this waits for the device.
    """
    firsts = [part.values[:1] for part in contributions if len(part.values)]
    return bool(firsts) and bool(torch.cat(firsts).isnan().any())
