"""Optimizers that know that their momentum lives in a memory."""

from dgc.optim.sgd import DGCSGD

__all__ = ['DGCSGD']
