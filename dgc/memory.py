"""What each worker keeps back of its gradients, so that nothing is lost by sending less.

A memory is a rule, not a store: its flat float32 buffers live in the bucket, whose state is saved
by parameter name. ``select`` is the one step that the reducer knows; it splits into

    compensate   corrected = what was kept back + gradient
    compress     sparse = the part of it worth sending

After the exchange, ``settle`` has the memory

    forget       what was delivered is no longer kept
    restore      what was rounded off, or cut on the way, is

and forgetting obeys, bit for bit: sent + kept = corrected. SAMomentum has a law of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from dgc.buckets import Bucket
from dgc.compressors.base import Compressor
from dgc.corrected import Corrected
from dgc.exchanges.base import Exchanged
from dgc.ops import Update, is_fused
from dgc.sparse import Sparse


class Memory(ABC):
    """What is kept back by one worker.

    buffers: names of the flat float32 buffers that a bucket holds for this memory.
    holds_momentum: the velocity is kept here, so the optimizer must not apply momentum again.
    """

    buffers: tuple[str, ...] = ()
    holds_momentum = False

    def check(self, momentum: float, nesterov: bool) -> None:
        """Raise ValueError where this memory has no rule for an optimizer's momentum."""

    @abstractmethod
    def compensate(self, bucket: Bucket) -> Tensor:
        """Add the bucket's gradient to what was kept back; returns the sum, float32 ``[n]``."""

    @abstractmethod
    def forget(self, bucket: Bucket, sent: Sparse) -> None:
        """Stop keeping ``sent``."""

    @abstractmethod
    def restore(self, bucket: Bucket, left_out: Sparse) -> None:
        """Keep again what the exchange could not deliver: rounding errors and cuts."""

    def correct(self, bucket: Bucket) -> Corrected:
        """What ``compensate`` gives; where a fused kernel knows how, as late as it is needed."""
        return Corrected(self.compensate(bucket), name=bucket.name)

    def select(self, bucket: Bucket, compressor: Compressor) -> Sparse:
        """The message of this step, still kept; a dense one is the memory's own storage."""
        return compressor.select(self.correct(bucket), bucket.ratio)

    def settle(self, bucket: Bucket, selected: Sparse, exchanged: Exchanged) -> None:
        """Forget what was delivered of ``selected``, and keep again what was left out of it."""
        self.forget(bucket, selected if exchanged.sent is None else exchanged.sent)
        if exchanged.left_out is not None:
            self.restore(bucket, exchanged.left_out)


class NoMemory(Memory):
    """Nothing is kept: what is not sent is lost. Right for dense exchanges only."""

    def compensate(self, bucket: Bucket) -> Tensor:
        """The gradient itself, float32 ``[n]``: the same storage where it is float32 already."""
        return bucket.gradient.float()

    def forget(self, bucket: Bucket, sent: Sparse) -> None:
        """Nothing is kept, so there is nothing to forget."""

    def restore(self, bucket: Bucket, left_out: Sparse) -> None:
        """What is left out is lost."""


class Residual(Memory):
    """Error feedback: what was not sent is added to the next gradient (Aji and Heafield, 2017)."""

    buffers = ('residual',)

    def compensate(self, bucket: Bucket) -> Tensor:
        """``residual += gradient``."""
        return bucket.buffers['residual'].add_(bucket.gradient)

    def correct(self, bucket: Bucket) -> Corrected:
        """``compensate``, fused with the search for what is worth sending."""
        if not is_fused(bucket.dtype, bucket.device):
            return super().correct(bucket)
        return Corrected(bucket.buffers['residual'], Update(bucket.pieces), bucket.name)

    def forget(self, bucket: Bucket, sent: Sparse) -> None:
        """Zero at the positions that were sent."""
        clear(bucket.buffers['residual'], sent)

    def restore(self, bucket: Bucket, left_out: Sparse) -> None:
        """``residual += left_out``."""
        left_out.add_to(bucket.buffers['residual'])


class MomentumCorrection(Memory):
    """Momentum before sparsification, with factor masking (Lin et al., ICLR 2018, 3.2, 3.3).

    Momentum of a sparse sum would skip the discount that the steps in between are due, so each
    worker keeps its own, and accumulates the velocity instead of the gradient:

        u ← m·u + g,  v ← v + u        Nesterov:  u ← m·(u + g),  v ← v + u + g

    ``m`` and Nesterov are those of the optimizer, read from the bucket. Where an element is sent,
    v ← 0, and u ← 0 too: momentum gathered while it waited would push it in a stale direction.
    A dense bucket sends all of v and masks nothing: the mean of the workers' momenta is the
    momentum of the mean, so this is momentum SGD, and flushes what a sparse phase had kept back.

    momentum_masking: zero ``u`` at the positions that were sent.
    """

    buffers = ('momentum', 'velocity')
    holds_momentum = True

    def __init__(self, momentum_masking: bool = True) -> None:
        self.momentum_masking = momentum_masking

    def compensate(self, bucket: Bucket) -> Tensor:
        """Momentum, then accumulation; returns the accumulated velocity ``v[n]``."""
        u, v, gradient = bucket.buffers['momentum'], bucket.buffers['velocity'], bucket.gradient
        if bucket.nesterov:
            u.add_(gradient).mul_(bucket.momentum)
            return v.add_(u).add_(gradient)
        u.mul_(bucket.momentum).add_(gradient)
        return v.add_(u)

    def correct(self, bucket: Bucket) -> Corrected:
        """``compensate``, fused with the search for what is worth sending."""
        if not is_fused(bucket.dtype, bucket.device):
            return super().correct(bucket)
        u, v = bucket.buffers['momentum'], bucket.buffers['velocity']
        update = Update(bucket.pieces, u, bucket.momentum, bucket.nesterov)
        return Corrected(v, update, bucket.name)

    def forget(self, bucket: Bucket, sent: Sparse) -> None:
        """Zero the velocity at what was sent and, where sparse and masked, the momentum."""
        clear(bucket.buffers['velocity'], sent)
        if self.momentum_masking and not sent.is_dense:
            clear(bucket.buffers['momentum'], sent)

    def restore(self, bucket: Bucket, left_out: Sparse) -> None:
        """``v += left_out``; the momentum was right already."""
        left_out.add_to(bucket.buffers['velocity'])


class SAMomentum(Memory):
    """Sparsification-aware momentum (Yan, arXiv 1910.10929, section 4.3).

        u ← m·u + g;  send the top part of u;  where it was not sent, u ← u / m

    so that the next step's m·u leaves it whole: an element that waits behaves as if its batch were
    larger, and what is sent keeps its momentum. The law is not sent + kept = corrected, but

        m·u' = u where nothing was sent,  u' = u where it was.

    A dense bucket sends all of u: momentum SGD. ``g`` is a gradient times its learning rate where
    the memory's owner is a parameter server's worker, as in the paper.
    """

    buffers = ('momentum',)
    holds_momentum = True

    def check(self, momentum: float, nesterov: bool) -> None:
        """It divides by the momentum, and has no form of Nesterov's."""
        if not momentum > 0:
            raise ValueError(
                f'SAMomentum divides by the momentum, which is {momentum}: set the '
                "optimizer's momentum above 0, or use Residual"
            )
        if nesterov:
            raise ValueError('SAMomentum has no Nesterov form: set nesterov to False')

    def compensate(self, bucket: Bucket) -> Tensor:
        """``u ← m·u + g``; returns ``u[n]``."""
        return bucket.buffers['momentum'].mul_(bucket.momentum).add_(bucket.gradient)

    def forget(self, bucket: Bucket, sent: Sparse) -> None:
        """``u ← u / m`` wherever nothing was sent."""
        if sent.indices is None:
            return
        u = bucket.buffers['momentum']
        kept = u[sent.indices]
        u.div_(bucket.momentum)[sent.indices] = kept

    def restore(self, bucket: Bucket, left_out: Sparse) -> None:
        """``u += left_out / m``, of which the next step leaves ``left_out``."""
        errors = left_out._replace(values=left_out.values / bucket.momentum)
        errors.add_to(bucket.buffers['momentum'])


def clear(flat: Tensor, sent: Sparse) -> None:
    """``flat[n] ← 0`` at the positions of ``sent``."""
    if sent.indices is None:
        flat.zero_()
    else:
        flat.index_fill_(0, sent.indices, 0.0)
