"""Optimizers that leave their momentum to a memory."""

from dgc.optim.one_bit_adam import OneBitAdam
from dgc.optim.sgd import DGCSGD

__all__ = ['DGCSGD', 'OneBitAdam']
