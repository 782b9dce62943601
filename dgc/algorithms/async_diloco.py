"""Asynchronous DiLoCo: fragments, a quorum, a grace time (arXiv 2604.21428), and less weight for
what is late (Liu et al., arXiv 2401.09135).

Learner, of each fragment, from the parameters θ_w that the server sent last:

    1. H steps of an inner optimizer (AdamW):  θ        dgc/parameter_server/asynchronous_steps.py
    2. Push Δ = θ_w - θ, and the number n of samples; go on from θ, without waiting
    3. When the round has ended: θ_w ← the server's parameters, θ ← θ_w - what is not pushed yet

Server, of each fragment:                               dgc/parameter_server/outer_server.py

    4. Δ_w += Δ / (1 + s),  n_w += n, for a learner w whose Δ is s rounds late
    5. With a quorum, after a grace time: outer step on Σ n_w·Δ_w / Σ n_w (SGD, Nesterov momentum
       0.9, rate 0.7)
    6. Reply at once, with newer parameters where there are any

Both directions can be compressed, with error feedback: a learner keeps what it did not send, and
what the server did not answer stays in the difference of its parameters and θ_w.
"""

from __future__ import annotations

from dgc.compressors import Compressor
from dgc.memory import Memory, NoMemory, Residual
from dgc.parameter_server.composition import STATISTICS_PERIOD, Asynchronous, dual_way
from dgc.planner import Planner
from dgc.rules import LayerRules


def async_diloco(
    compress_ratio: float = 1.0,
    secondary_ratio: float | None = None,
    values: str = 'fp32',
    indices: str = 'packed',
    decay: float = 1.0,
    memory: Memory | None = None,
    compressor: Compressor | None = None,
    secondary: Compressor | None = None,
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    statistics_period: int = STATISTICS_PERIOD,
    always_sparse: bool = False,
) -> Asynchronous:
    """Return the composition for the movement of learners: dense float32 in both directions.

    Args:
        compress_ratio: The density of movements and answers; above 1 its inverse, 100 for 1 %.
        secondary_ratio: The density of answers, likewise; None for ``compress_ratio``.
        values, indices: Codings of sparse messages.
        decay: By which a learner's residual fades from push to push; 1 keeps everything.
        memory: Of a learner; by default a residual where messages are sparse.
        compressor: Selects what a learner sends of its movement.
        secondary: Selects what the server answers of the difference to a learner's parameters.
        rules: Which parameters stay dense.
        planner: How the parameters of a fragment are grouped into buckets.
        statistics_period: Steps between two reports of a learner's BatchNorm statistics.
        always_sparse: Whether to send sparse messages also where they are longer than dense ones.
    """
    if memory is None:
        memory = Residual(decay) if compress_ratio != 1 or always_sparse else NoMemory()
    return dual_way(
        compress_ratio,
        secondary_ratio,
        values=values,
        indices=indices,
        memory=memory,
        compressor=compressor,
        secondary=secondary,
        rules=rules,
        planner=planner,
        statistics_period=statistics_period,
        always_sparse=always_sparse,
    )
