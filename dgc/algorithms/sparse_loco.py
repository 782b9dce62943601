"""SparseLoCo: sparse messages of two bits for local steps (Sarfi et al., arXiv 2508.15706).

From the parameters θ_s on which all ranks agree:

    1. H steps of an inner optimizer on each rank:  θ,  Δ = θ_s - θ         dgc/local_steps.py
    2. e ← β·e + Δ                                                          dgc/memory/
    3. Chunks of 4,096 elements of e: tiles of 64 × 64 of matrices          dgc/transforms/
    4. own ← Q(the 64 largest elements of each chunk), 2 bits each          dgc/codec/
    5. e ← e - own
    6. θ_s ← θ_s - α·(mean of the ranks' own), α = 1, no momentum; θ ← θ_s  the outer SGD

The error memory e, which fades by β, takes the place of the outer momentum of DiLoCo. Chunks are
cut from the whole bucket: one chunk may hold the end of one parameter and the beginning of the
next. With ``planner=PerTensor()`` each parameter has chunks of its own.
"""

from __future__ import annotations

from dgc.codec import Codec
from dgc.composition import Composition
from dgc.compressors import BlockTopK
from dgc.exchanges import AllGather
from dgc.memory import Residual
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule
from dgc.transforms import ChunkLayout, Tiles

SIDE = 64  # of a tile, so that a chunk of the index coding is one


def sparse_loco(
    topk: int = 64,
    decay: float = 0.95,
    values: str = '2bit',
    indices: str = 'even',
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return SparseLoCo; its outer optimizer is SGD of rate 1 without momentum.

    Args:
        topk: Elements of a chunk of 4,096 that are sent.
        decay: β.
        values, indices: Codings of the elements, see Codec.
        rules: By default all parameters are compressed, vectors too.
        planner: Divides the parameters among buckets.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        transform=Tiles(SIDE),
        memory=Residual(decay),
        compressor=BlockTopK(topk, ChunkLayout(SIDE * SIDE)),
        codec=Codec(values, indices),
        exchange=AllGather(),
        schedule=DensitySchedule(1.0),
        rules=rules or LayerRules(min_dims=0),
        planner=planner or BySize(),
        nonfinite=nonfinite,
    )
