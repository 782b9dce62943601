"""DeMo: decoupled momentum optimization (Peng et al., arXiv 2411.19870; Algorithm 1).

On each rank, for the gradient g of a bucket, with learning rate η:

    1. δ ← β·δ + η·g                                                   dgc/memory/
    2. Discrete cosine transform of each block; its k largest coefficients q   dgc/transforms/
    3. δ ← δ - inverse(q)
    4. Gather all ranks' q; average each coefficient over the ranks that sent it
    5. w ← w - η·sign(inverse(average))

Here g is transformed instead of δ: the transform is linear and orthonormal, so δ is kept as
coefficients and step 3 sets the sent ones to zero, exactly. Messages are added in order of rank,
and the transform's sums are exact, so that all ranks come to the same bits, with any number of
threads and on any device. The release adds in whatever order, and its products round as a library
divides them.
"""

from __future__ import annotations

from dgc.clipping import Clipping
from dgc.codec import Codec
from dgc.composition import Composition
from dgc.compressors import BlockTopK
from dgc.exchanges import AllGather, Scale
from dgc.memory import DecoupledMomentum
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule
from dgc.transforms import BlockDCT, BlockLayout


def demo(
    topk: int = 32,
    chunk: int = 64,
    decay: float = 0.999,
    values: str = 'fp32',
    indices: str = 'int32',
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return DeMo; its optimizer is SGD without momentum, with decoupled weight decay if any.

    Args:
        topk: k, coefficients of a block that are sent.
        chunk: The largest side of a block, up to 128.
        decay: β.
        values, indices: Codings of the coefficients, see Codec.
        rules: By default all parameters are compressed, vectors too.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    layout = BlockLayout(chunk)
    return Composition(
        transform=BlockDCT(layout, sign=True),
        memory=DecoupledMomentum(decay),
        compressor=BlockTopK(topk, layout),
        codec=Codec(values, indices),
        exchange=AllGather(Scale.CONTRIBUTORS),
        schedule=DensitySchedule(1.0),
        rules=rules or LayerRules(min_dims=0),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )
