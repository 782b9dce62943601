"""1-bit Adam (Tang et al., ICML 2021, arXiv 2102.02888; Algorithm 1).

Warm-up, for ``freeze_step`` steps: Adam on the mean gradient, uncompressed. Then, on each rank:

    1. m ← β1·m̄ + (1 - β1)·g                                          dgc/memory/
    2. Send sign(m + e)·mean|m + e| of each owner's slice to its owner;  e ← m + e - sent
    3. The owner averages its slice, adds its own error, codes it the same way and sends it to all
                                                    dgc/exchanges/compressed_all_reduce.py
    4. m̄ ← what all ranks have received
    5. w ← w - lr·m̄ / (√v + ε), with v as it was at the end of the warm-up    dgc/optim/

Bias correction ends with the warm-up: its factors are frozen with v.
"""

from __future__ import annotations

from dgc.algorithms.power_sgd import after_uncompressed_steps
from dgc.algorithms.sign_sgd import ALL_LAYERS
from dgc.clipping import Clipping
from dgc.codec import Codec
from dgc.composition import Composition
from dgc.exchanges import CompressedAllReduce
from dgc.memory import AveragedMomentum
from dgc.planner import PerTensor, Planner


def one_bit_adam(
    freeze_step: int = 100,
    beta1: float = 0.9,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return the communication of 1-bit Adam; its optimizer is ``dgc.optim.OneBitAdam``.

    Args:
        freeze_step: Steps of the warm-up.
        beta1: Decay of the first moment, the same as the optimizer's.
        planner: Divides the parameters among buckets; by default each has its own, since the scale
            of a message must fit its magnitudes.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=AveragedMomentum(beta1),
        codec=Codec('sign', 'none'),
        exchange=CompressedAllReduce(),
        schedule=after_uncompressed_steps(freeze_step),
        rules=ALL_LAYERS,
        planner=planner or PerTensor(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )
