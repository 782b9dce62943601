"""0/1 Adam (Lu et al., ICLR 2023, arXiv 2202.06009; Algorithm 1).

With the rate γ of each step, and sets of steps T_u and T_v (dgc/zero_one.py), on each rank:

    1. m ← β1·m + (1 - β1)·g,  w ← w - γ·m / (√v + ε),  u ← u + γ·m          dgc/optim/
    2. In the steps T_v:  v ← β2·v + (1 - β2)·ḡ², with the uncompressed mean gradient ḡ
    3. In the steps T_u, send u + e in one bit per element, to the owners of slices and back, each
       with an error memory e;  ū ← what all ranks have received             this composition
    4. m ← ū / Σγ,  w ← w_s - ū / (√v + ε),  u ← 0,  w_s ← w: the sum and the parameters are those
       since, and at, the synchronization before

The intervals of T_v double after each κ of its steps, and T_v ends where local steps begin. Then
the intervals of T_u double up to H.

Two things the paper leaves open, or has otherwise. v begins at 0, corrected as in Adam. It changes
before step 4 of its step, in the paper after it.
"""

from __future__ import annotations

from dgc.algorithms.sign_sgd import ALL_LAYERS
from dgc.codec import Codec
from dgc.composition import Composition
from dgc.exchanges import CompressedAllReduce
from dgc.memory import Residual
from dgc.planner import PerTensor, Planner
from dgc.schedule import DensitySchedule


def zero_one_adam(planner: Planner | None = None, nonfinite: str = 'stop') -> Composition:
    """Return the composition for the sums of momenta of 0/1 Adam; its wrapper is
    ``dgc.ZeroOneSteps``.

    Args:
        planner: Divides the parameters among buckets; by default each has its own, since the scale
            of a message must fit its magnitudes.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=Residual(),
        codec=Codec('sign', 'none'),
        exchange=CompressedAllReduce(),
        schedule=DensitySchedule(1.0),
        rules=ALL_LAYERS,
        planner=planner or PerTensor(),
        nonfinite=nonfinite,
    )
