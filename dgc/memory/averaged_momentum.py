"""The momentum of 1-bit Adam, which follows the mean over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from dgc.bucket_spec import BucketSpec
from dgc.buckets import Bucket
from dgc.exchanges.base import Exchanged
from dgc.memory.base import Memory, clear
from dgc.sparse import Sparse
from dgc.state import Elements, Entries, Resize


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
    unsent = 'residual'
    needs_mean = True
    sends_gradients = False

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

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """The optimizer must expect momenta, of the same decay."""
        name = type(optimizer).__name__
        for group in optimizer.param_groups:
            if 'sends_momentum' not in group:
                raise ValueError(
                    f'AveragedMomentum sends momenta, which {name} would take for gradients: use '
                    'dgc.optim.OneBitAdam'
                )
            if group['betas'][0] != self.beta1:
                raise ValueError(
                    f'{name} has beta1={group["betas"][0]}, AveragedMomentum {self.beta1}: make '
                    'them equal'
                )

    def check_buckets(self, buckets: Sequence[BucketSpec]) -> None:
        """Every parameter must be compressed in the end: the optimizer expects momenta of all."""
        never = [name for bucket in buckets if bucket.schedule is None for name in bucket.names]
        if never:
            raise ValueError(
                f'{", ".join(never)} would never be compressed, so its gradient would be taken for '
                'a momentum: use LayerRules(min_dims=0), without exceptions'
            )

    def compensate(self, bucket: Bucket) -> Tensor:
        """Return the gradient in the warm-up, later ``m + e``."""
        if bucket.density is None:
            return bucket.contribution.float()
        momentum, residual = bucket.buffers['momentum'], bucket.buffers['residual']
        residual.add_(momentum, alpha=self.beta1)
        return residual.add_(bucket.contribution, alpha=1 - self.beta1)

    def commit(self, bucket: Bucket) -> None:
        """Tell the optimizer whether ``.grad`` is a momentum: the groups' ``sends_momentum``."""
        for member in bucket.members:
            member.group['sends_momentum'] = bucket.density is not None

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
