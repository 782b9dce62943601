"""Exchanges combine the ranks' messages into one result, one per file."""

from dgc.exchanges.all_gather import AllGather
from dgc.exchanges.all_reduce import AllReduce
from dgc.exchanges.base import Context, Exchange, Exchanged, Scale
from dgc.exchanges.chunk import ChunkAllReduce
from dgc.exchanges.compressed_all_reduce import CompressedAllReduce
from dgc.exchanges.gtopk import GTopK, GTopKDoubling
from dgc.exchanges.hierarchical import Hierarchical
from dgc.exchanges.majority_vote import MajorityVote
from dgc.exchanges.oktopk import OkTopK
from dgc.exchanges.power_sgd import PowerSGD
from dgc.exchanges.random_k import RandomK
from dgc.exchanges.residuals import GlobalResiduals, LocalResiduals, PartialResiduals, Residuals
from dgc.exchanges.row_means import RowMeans
from dgc.exchanges.spardl import SparDL
from dgc.exchanges.team_gather import Bruck, RecursiveDoubling, TeamGather
from dgc.exchanges.tight_all_gather import TightAllGather

__all__ = [
    'AllGather',
    'AllReduce',
    'Bruck',
    'ChunkAllReduce',
    'CompressedAllReduce',
    'Context',
    'Exchange',
    'Exchanged',
    'GTopK',
    'GTopKDoubling',
    'GlobalResiduals',
    'Hierarchical',
    'LocalResiduals',
    'MajorityVote',
    'OkTopK',
    'PartialResiduals',
    'PowerSGD',
    'RandomK',
    'RecursiveDoubling',
    'Residuals',
    'RowMeans',
    'Scale',
    'SparDL',
    'TeamGather',
    'TightAllGather',
]
