"""SparDL (Zhao et al., ICDE 2024, arXiv 2304.00737).

P ranks form d teams. On each rank, for the gradient g of a bucket, in P/d blocks:

    1. v ← v + g
    2. Spar-Reduce-Scatter within the team (Algorithm 1): ⌈log2(P/d)⌉ rounds; before a block is
       sent, it is cut to its d·k/P largest elements
    3. Spar-All-Gather between the owners of a block (section III-B), for d > 1: by recursive
       doubling (R-SAG) or by Bruck's algorithm with an adaptive size (B-SAG)
    4. All-gather of the blocks within the team
    5. Global residual collection (section III-C): whatever was cut anywhere returns to exactly one
       rank's v. PRES and LRES, which lose a part of it, are for comparison.
    6. w ← w - lr·result / P
"""

from __future__ import annotations

from typing import Any

from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.composition import Composition
from dgc.compressors import Compressor
from dgc.exchanges import (
    Bruck,
    GlobalResiduals,
    LocalResiduals,
    PartialResiduals,
    Residuals,
    SparDL,
    TeamGather,
)
from dgc.memory import Residual


def spardl(
    compress_ratio: float = 0.001,
    teams: int = 1,
    gather: TeamGather | None = None,
    block_compressor: Compressor | None = None,
    residuals: Residuals | None = None,
    **settings: Any,
) -> Composition:
    """Return SparDL with a residual.

    Args:
        compress_ratio: The density.
        teams: d, a divisor of the number of ranks.
        gather: How the teams' blocks are summed; see SparDL.
        block_compressor: Selects from a block; exact top-k by default.
        residuals: Which truncation errors return to the memories.
        settings: Others of ``deep_gradient_compression``.
    """
    exchange = SparDL(teams, gather, block_compressor, residuals or GlobalResiduals())
    parts = {'memory': Residual(), 'exchange': exchange, **settings}
    return deep_gradient_compression(compress_ratio, **parts)


def spardl_teams(compress_ratio: float = 0.001, **settings: Any) -> Composition:
    """Return SparDL in two teams (R-SAG)."""
    return spardl(compress_ratio, teams=2, **settings)


def spardl_bruck(compress_ratio: float = 0.001, **settings: Any) -> Composition:
    """Return SparDL in two teams, gathered by Bruck's algorithm (B-SAG)."""
    return spardl(compress_ratio, teams=2, gather=Bruck(), **settings)


def spardl_pres(compress_ratio: float = 0.001, **settings: Any) -> Composition:
    """Return SparDL with end-procedure residuals only (PRES)."""
    return spardl(compress_ratio, residuals=PartialResiduals(), **settings)


def spardl_lres(compress_ratio: float = 0.001, **settings: Any) -> Composition:
    """Return SparDL with local residuals only (LRES)."""
    return spardl(compress_ratio, residuals=LocalResiduals(), **settings)
