"""How messages are summed over the workers: each exchange is one file."""

from dgc.exchanges.all_gather import AllGather
from dgc.exchanges.all_reduce import AllReduce
from dgc.exchanges.base import Exchange, Exchanged
from dgc.exchanges.chunk import ChunkAllReduce
from dgc.exchanges.gtopk import GTopK, GTopKDoubling
from dgc.exchanges.hierarchical import Hierarchical
from dgc.exchanges.oktopk import OkTopK
from dgc.exchanges.residuals import GlobalResiduals, LocalResiduals, PartialResiduals, Residuals
from dgc.exchanges.spardl import SparDL
from dgc.exchanges.team_gather import Bruck, RecursiveDoubling, TeamGather

__all__ = [
    'AllGather',
    'AllReduce',
    'Bruck',
    'ChunkAllReduce',
    'Exchange',
    'Exchanged',
    'GTopK',
    'GTopKDoubling',
    'GlobalResiduals',
    'Hierarchical',
    'LocalResiduals',
    'OkTopK',
    'PartialResiduals',
    'RecursiveDoubling',
    'Residuals',
    'SparDL',
    'TeamGather',
]
