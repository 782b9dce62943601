"""Memories implement error feedback on each rank, one per file."""

from dgc.memory.averaged_momentum import AveragedMomentum
from dgc.memory.base import Memory
from dgc.memory.decoupled_momentum import DecoupledMomentum
from dgc.memory.first_moment import FirstMoment
from dgc.memory.local_momentum import LocalMomentum
from dgc.memory.mean_momentum import MeanMomentum
from dgc.memory.momentum_correction import MomentumCorrection
from dgc.memory.none import NoMemory
from dgc.memory.residual import Residual
from dgc.memory.sa_momentum import SAMomentum

__all__ = [
    'AveragedMomentum',
    'DecoupledMomentum',
    'FirstMoment',
    'LocalMomentum',
    'MeanMomentum',
    'Memory',
    'MomentumCorrection',
    'NoMemory',
    'Residual',
    'SAMomentum',
]
