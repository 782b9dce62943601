"""Error feedback: what each rank keeps of its gradients and adds to later ones.

A memory is a rule without storage: its float32 tensors ``[n]`` live in the bucket, which saves them
by parameter name. ``select`` makes the message of a step in two parts, which a fused kernel may do
in one pass over memory:

    compensate   corrected = residual (or velocity) + gradient
    compress     selected = the part of it that is sent

After the exchange, ``update`` makes the residual of the next step:

    remove_sent  what was delivered leaves the residual
    add_error    quantization error and truncation error return to it

Removal obeys, bit for bit: sent + residual = corrected. SAMomentum has a law of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket, part_of
from dgc.compressors.base import Compressor
from dgc.corrected import Corrected
from dgc.exchanges.base import Exchanged
from dgc.ops import Update, is_fused
from dgc.schedule import DensitySchedule
from dgc.sparse import Sparse
from dgc.state import Elements, Entries, Resize


class Memory(ABC):
    """The error feedback of one rank.

    Attributes:
        buffers: Names of the float32 tensors ``[n]`` that a bucket holds for this memory.
        holds_momentum: The velocity is kept here, so the optimizer must not apply momentum again.
        feeds_back: What is not sent, and what coding rounds off, is added to a later message.
    """

    buffers: tuple[str, ...] = ()
    holds_momentum = False
    feeds_back = True

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare the tensors of ``buffers``; ranks' residuals add up."""
        return {name: Elements() for name in self.buffers}

    def check(self, momentum: float, nesterov: bool) -> None:
        """Raise ValueError where this memory has no rule for an optimizer's momentum."""

    def check_optimizer(self, optimizer: Optimizer, schedule: DensitySchedule) -> None:
        """Raise ValueError where the result of the exchange means nothing to ``optimizer``."""

    @abstractmethod
    def compensate(self, bucket: Bucket) -> Tensor:
        """Add the bucket's gradient to the residual; return the sum, float32 ``[n]``."""

    @abstractmethod
    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """Remove ``sent`` from the residual."""

    @abstractmethod
    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """Add quantization and truncation errors to the residual."""

    def corrected(self, bucket: Bucket) -> Corrected:
        """Return what ``compensate`` computes, deferred where a fused kernel can compute it."""
        return deferred(bucket, self.compensate(bucket))

    def select(self, bucket: Bucket, compressor: Compressor) -> Sparse:
        """Return this step's message, which is still part of the residual.

        A dense message is the memory's own storage, not a copy.
        """
        density = 1.0 if bucket.density is None else bucket.density
        return compressor.select(self.corrected(bucket), density)

    def update(
        self, bucket: Bucket, selected: Sparse, exchanged: Exchanged, result: Sequence[Tensor]
    ) -> None:
        """Compute the residual of the next step.

        Args:
            bucket: Whose state is updated.
            selected: What ``select`` returned.
            exchanged: What was delivered of it, and which errors return.
            result: The bucket's gradients after the exchange, as flat tensors one after another:
                the mean over the ranks, unless the exchange says otherwise.
        """
        self.remove_sent(bucket, selected if exchanged.sent is None else exchanged.sent)
        if exchanged.error is not None:
            self.add_error(bucket, exchanged.error)


class NoMemory(Memory):
    """No error feedback: what is not sent is lost. For dense exchanges and unbiased codings."""

    feeds_back = False

    def compensate(self, bucket: Bucket) -> Tensor:
        """Return the gradient, float32 ``[n]``: the same storage where it is float32 already."""
        return bucket.contribution.float()

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """Do nothing: there is no residual."""

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """Do nothing: errors are lost."""


class Residual(Memory):
    """Error feedback: what was not sent is added to the next gradient (Aji and Heafield, 2017).

    Args:
        decay: The residual is multiplied by it before a gradient is added: 1 keeps everything;
            below 1 stale residuals fade (SparseLoCo, arXiv 2508.15706).

    Raises:
        ValueError: For a decay outside (0, 1].
    """

    buffers = ('residual',)

    def __init__(self, decay: float = 1.0) -> None:
        if not 0 < decay <= 1:
            raise ValueError(f'decay must be above 0 and at most 1, got {decay}')
        self.decay = decay

    def compensate(self, bucket: Bucket) -> Tensor:
        """``residual ← decay·residual + gradient``."""
        residual = bucket.buffers['residual']
        if self.decay != 1:
            residual.mul_(self.decay)
        return residual.add_(bucket.contribution)

    def corrected(self, bucket: Bucket) -> Corrected:
        """``compensate``, fused with the compressor's search."""
        if self.decay != 1 or not is_fused(bucket.contribution_pieces[0].dtype, bucket.device):
            return super().corrected(bucket)
        return deferred(bucket, bucket.buffers['residual'], Update(bucket.contribution_pieces))

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """``residual ← 0`` at the positions that were sent."""
        clear(bucket.buffers['residual'], sent)

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """``residual += error``."""
        error.add_to(bucket.buffers['residual'])


class DecoupledMomentum(Residual):
    """DeMo's momentum, which doubles as the residual (Peng et al., arXiv 2411.19870, Algorithm 1).

        δ ← β·δ + η·g,  send the largest of δ,  δ ← δ - sent

    with the learning rate η of the optimizer: fast components leave through the message, slow ones
    accumulate. The result of the exchange is not a momentum, so the optimizer's own must be 0.

    Args:
        decay: β.
    """

    def __init__(self, decay: float = 0.999) -> None:
        super().__init__(decay)

    def check(self, momentum: float, nesterov: bool) -> None:
        """The momentum is this memory's ``decay``."""
        if momentum:
            raise ValueError(
                f'DecoupledMomentum has a momentum of its own (decay={self.decay}) and the '
                f"optimizer's is {momentum}: set the optimizer's momentum to 0"
            )

    def compensate(self, bucket: Bucket) -> Tensor:
        """``δ ← β·δ + η·g``."""
        residual = bucket.buffers['residual'].mul_(self.decay)
        gradients = bucket.views(bucket.contribution)
        for member, (_, gradient) in zip(bucket.members, gradients, strict=True):
            # Learning rates may differ inside a bucket, and change during training.
            place = part_of(residual, member.offset, member.parameter)
            place.add_(gradient, alpha=float(member.group.get('lr', 1.0)))
        return residual

    def corrected(self, bucket: Bucket) -> Corrected:
        """``compensate``; no kernel scales a gradient on its way."""
        return Memory.corrected(self, bucket)


class MomentumCorrection(Memory):
    """Momentum before sparsification, with factor masking (Lin et al., ICLR 2018, 3.2, 3.3).

    Momentum of a sparse sum would miss the discount of the steps in between, so each rank keeps its
    own, and accumulates the velocity instead of the gradient:

        u ← m·u + g,  v ← v + u        Nesterov:  u ← m·(u + g),  v ← v + u + g

    ``m`` and Nesterov are those of the optimizer, read from the bucket. Where an element is sent,
    v ← 0, and u ← 0 too: momentum gathered while it waited would push it in a stale direction.
    An uncompressed bucket sends all of v and masks nothing: the mean of the ranks' momenta is the
    momentum of the mean, so this is momentum SGD, and it flushes the residual of a sparse phase.

    Args:
        momentum_masking: Zero ``u`` at the positions that were sent.
    """

    buffers = ('momentum', 'velocity')
    holds_momentum = True

    def __init__(self, momentum_masking: bool = True) -> None:
        self.momentum_masking = momentum_masking

    def compensate(self, bucket: Bucket) -> Tensor:
        """Momentum, then accumulation; return the accumulated velocity ``v[n]``."""
        u, v, gradient = bucket.buffers['momentum'], bucket.buffers['velocity'], bucket.contribution
        if bucket.nesterov:
            u.add_(gradient).mul_(bucket.momentum)
            return v.add_(u).add_(gradient)
        u.mul_(bucket.momentum).add_(gradient)
        return v.add_(u)

    def corrected(self, bucket: Bucket) -> Corrected:
        """``compensate``, fused with the compressor's search."""
        if not is_fused(bucket.contribution_pieces[0].dtype, bucket.device):
            return super().corrected(bucket)
        u, v = bucket.buffers['momentum'], bucket.buffers['velocity']
        update = Update(bucket.contribution_pieces, u, bucket.momentum, bucket.nesterov)
        return deferred(bucket, v, update)

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """Zero the velocity at what was sent and, where sparse and masked, the momentum."""
        clear(bucket.buffers['velocity'], sent)
        if self.momentum_masking and not sent.is_dense:
            clear(bucket.buffers['momentum'], sent)

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """``v += error``; the momentum needs no correction."""
        error.add_to(bucket.buffers['velocity'])


class SAMomentum(Memory):
    """Sparsification-aware momentum (Yan, arXiv 1910.10929, section 4.3).

        u ← m·u + g;  send the top part of u;  where it was not sent, u ← u / m

    so that the next step's m·u leaves it whole: an element that waits behaves as if its batch were
    larger, and what is sent keeps its momentum. The law is not sent + residual = corrected, but

        m·u' = u where nothing was sent,  u' = u where it was.

    An uncompressed bucket sends all of u: momentum SGD. ``g`` is a gradient times its learning rate
    on a parameter server's worker, as in the paper.
    """

    buffers = ('momentum',)
    holds_momentum = True

    def check(self, momentum: float, nesterov: bool) -> None:
        """It divides by the momentum, and has no Nesterov form."""
        if not momentum > 0:
            raise ValueError(
                f'SAMomentum divides by the momentum, which is {momentum}: set the '
                "optimizer's momentum above 0, or use Residual"
            )
        if nesterov:
            raise ValueError('SAMomentum has no Nesterov form: set nesterov to False')

    def compensate(self, bucket: Bucket) -> Tensor:
        """``u ← m·u + g``; return ``u[n]``."""
        return bucket.buffers['momentum'].mul_(bucket.momentum).add_(bucket.contribution)

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """``u ← u / m`` at every position that was not sent."""
        if sent.indices is None:
            return
        u = bucket.buffers['momentum']
        kept = u[sent.indices]
        u.div_(bucket.momentum)[sent.indices] = kept

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """``u += error / m``, of which the next step's m·u makes ``error``."""
        errors = error._replace(values=error.values / bucket.momentum)
        errors.add_to(bucket.buffers['momentum'])


class AveragedMomentum(Memory):
    """1-bit Adam's momentum, which follows the mean (Tang et al., arXiv 2102.02888, Algorithm 1).

    While the bucket is uncompressed (the warm-up), gradients pass through and the mean gradient ḡ
    is tracked; afterwards each rank's momentum is compressed with error feedback, and all ranks
    continue from the mean of what was decoded, m̄:

        warm-up      send g;                        m̄ ← β1·m̄ + (1 - β1)·ḡ
        compressed   m ← β1·m̄ + (1 - β1)·g;  send Q(m + e);  e ← m + e - Q(m + e);  m̄ ← mean Q

    Args:
        beta1: Decay of the first moment, as in the optimizer.
    """

    buffers = ('momentum', 'residual')

    def __init__(self, beta1: float = 0.9) -> None:
        if not 0 <= beta1 < 1:
            raise ValueError(f'beta1 must be at least 0 and below 1, got {beta1}')
        self.beta1 = beta1

    def state_for(self, spec: BucketSpec) -> Entries:
        """The momentum is the same on all ranks; residuals add up."""
        return {'momentum': Elements(Resize.REPLICATED), 'residual': Elements()}

    def check(self, momentum: float, nesterov: bool) -> None:
        """The momentum is this memory's."""
        if momentum:
            raise ValueError(
                "AveragedMomentum holds the first moment: set the optimizer's momentum to 0"
            )

    def check_optimizer(self, optimizer: Optimizer, schedule: DensitySchedule) -> None:
        """The optimizer must expect momenta after as many steps, of the same decay."""
        name = type(optimizer).__name__
        for group in optimizer.param_groups:
            if 'freeze_step' not in group:
                raise ValueError(
                    f'AveragedMomentum sends momenta, which {name} would take for gradients: use '
                    'dgc.optim.OneBitAdam'
                )
            steps = schedule.warmup_epochs * (schedule.stage_steps or 0)
            if group['freeze_step'] != steps or group['betas'][0] != self.beta1:
                raise ValueError(
                    f'{name} has freeze_step={group["freeze_step"]} and beta1={group["betas"][0]}, '
                    f'the composition {steps} and {self.beta1}: make them equal'
                )

    def compensate(self, bucket: Bucket) -> Tensor:
        """Return the gradient in the warm-up, later ``m + e``."""
        if bucket.density is None:
            return bucket.contribution.float()
        momentum, residual = bucket.buffers['momentum'], bucket.buffers['residual']
        residual.add_(momentum, alpha=self.beta1)
        return residual.add_(bucket.contribution, alpha=1 - self.beta1)

    def remove_sent(self, bucket: Bucket, sent: Sparse) -> None:
        """``e ← 0`` at the positions that were sent."""
        if bucket.density is not None:
            clear(bucket.buffers['residual'], sent)

    def add_error(self, bucket: Bucket, error: Sparse) -> None:
        """``e += error``."""
        if bucket.density is not None:
            error.add_to(bucket.buffers['residual'])

    def update(
        self, bucket: Bucket, selected: Sparse, exchanged: Exchanged, result: Sequence[Tensor]
    ) -> None:
        """Residual as in other memories; then m̄ from the result."""
        super().update(bucket, selected, exchanged, result)
        warming_up, begin = bucket.density is None, 0
        for piece in result:
            momentum = bucket.buffers['momentum'][begin : begin + len(piece)]
            if warming_up:
                momentum.mul_(self.beta1).add_(piece, alpha=1 - self.beta1)
            else:
                momentum.copy_(piece)
            begin += len(piece)


def deferred(bucket: Bucket, residual: Tensor, update: Update | None = None) -> Corrected:
    """Return the corrected gradient of a bucket, with what its compressor remembers."""
    state = bucket.state.get('compressor', {}).get('search')
    return Corrected(residual, update, state, bucket.spec)


def clear(flat: Tensor, sent: Sparse) -> None:
    """``flat[n] ← 0`` at the positions of ``sent``."""
    if sent.indices is None:
        flat.zero_()
    else:
        flat.index_fill_(0, sent.indices, 0.0)
