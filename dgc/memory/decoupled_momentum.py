"""DeMo's momentum, which doubles as the residual."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from dgc.buckets import Bucket, part_of
from dgc.memory.base import first_moment_of, refuse_momentum
from dgc.memory.residual import Residual


class DecoupledMomentum(Residual):
    """DeMo's momentum, which doubles as the residual (Peng et al., arXiv 2411.19870, Algorithm 1).

        δ ← β·δ + η·g,  send the largest of δ,  δ ← δ - sent

    with the learning rate η of the optimizer: fast components leave through the message, slow ones
    accumulate. The result of the exchange is not a momentum, so the optimizer's own must be 0.

    Args:
        decay: β.
    """

    applies_rate = True
    continues = False
    sends_gradients = False

    def __init__(self, decay: float = 0.999) -> None:
        super().__init__(decay)

    def check(self, momentum: float, nesterov: bool) -> None:
        """The momentum is this memory's ``decay``."""
        refuse_momentum('DecoupledMomentum', f'decay={self.decay}', momentum)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """The first moment of an optimizer such as Adam is a second momentum."""
        name, beta1 = first_moment_of(optimizer)
        if beta1:
            raise ValueError(
                f'DecoupledMomentum has a momentum of its own (decay={self.decay}) and {name} '
                f'would apply another (beta1={beta1}): use torch.optim.SGD without momentum'
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

    def _is_fused(self, bucket: Bucket) -> bool:
        """No kernel scales a gradient on its way."""
        return False
