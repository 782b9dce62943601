"""Optimizers for gradients to which a memory has applied the momentum."""

from dgc.optim.one_bit_adam import OneBitAdam
from dgc.optim.sgd import DGCSGD

__all__ = ['DGCSGD', 'OneBitAdam']
