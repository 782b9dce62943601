"""Optimizers: for gradients to which a memory has applied the momentum, and two in one."""

from dgc.optim.muon import MuonAndAdamW
from dgc.optim.one_bit_adam import OneBitAdam
from dgc.optim.sgd import DGCSGD
from dgc.optim.zero_one_adam import ZeroOneAdam

__all__ = ['DGCSGD', 'MuonAndAdamW', 'OneBitAdam', 'ZeroOneAdam']
