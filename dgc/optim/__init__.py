"""Optimizers for gradients to which a memory has applied the momentum, and several as one."""

from dgc.optim.joint import Joint, muon
from dgc.optim.one_bit_adam import OneBitAdam
from dgc.optim.sgd import DGCSGD

__all__ = ['DGCSGD', 'Joint', 'OneBitAdam', 'muon']
