"""Densities that are chosen during training, from what all ranks measure."""

from dgc.control.base import Control
from dgc.control.gravac import GraVAC
from dgc.control.l_greco import LGreCo

__all__ = ['Control', 'GraVAC', 'LGreCo']
