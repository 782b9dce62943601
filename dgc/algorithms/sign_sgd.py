"""signSGD with majority vote (Bernstein et al., ICML 2018, arXiv 1810.05291; Algorithm 1), and its
form with error feedback, EF-signSGD (Karimireddy et al., ICML 2019, arXiv 1901.09847; Algorithm 2).

Majority vote, on each rank, for the gradient g of a bucket:

    1. Send sign(g): one bit per element
    2. Sum the ranks' signs, and take the sign of the sum; ties give 0
    3. w ← w - lr·sign: the learning rate is the size of every element's step

Signum (the same paper, Algorithm 2), which has the momentum before the vote:

    1. u ← m·u + g
    2. Send sign(u), sum, and take the sign of the sum, as above

EF-signSGD:

    1. p ← g + e
    2. Send sign(p)·mean|p|: one bit per element, one float32 per block
    3. e ← p - sign(p)·mean|p|
    4. w ← w - lr·(mean over the ranks)
"""

from __future__ import annotations

from dataclasses import replace

from dgc.clipping import Clipping
from dgc.codec import Codec
from dgc.composition import Composition
from dgc.exchanges import AllGather, MajorityVote
from dgc.memory import LocalMomentum, NoMemory, Residual
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule

ALL_LAYERS = LayerRules(min_dims=0)


def sign_sgd(
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return signSGD with majority vote: 32 times fewer bits than float32 in each message.

    Args:
        rules: By default all parameters vote, vectors too: a step of one size for all.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=NoMemory(),
        codec=Codec('sign', 'none'),
        exchange=MajorityVote(),
        schedule=DensitySchedule(1.0),
        rules=rules or ALL_LAYERS,
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )


def signum(
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return signum: signSGD whose ranks vote with their momenta.

    The momentum is the optimizer's setting, which it must not apply itself: ``DGCSGD``.

    Args:
        rules: By default all parameters vote, vectors too: a step of one size for all.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    voting = sign_sgd(rules, planner, gradient_clipping, nonfinite)
    return replace(voting, memory=LocalMomentum())


def ef_sign_sgd(
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
) -> Composition:
    """Return EF-signSGD: signs scaled by the mean magnitude of a block, with a residual.

    Args:
        rules: Parameters that are never compressed, or have a density of their own.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
    """
    return Composition(
        memory=Residual(),
        codec=Codec('sign', 'none'),
        exchange=AllGather(),
        schedule=DensitySchedule(1.0),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
    )
