"""DGS, dual-way gradient sparsification, with a parameter server (Yan, arXiv 1910.10929), and the
asynchronous modes that it is compared with.

Worker, with learning rate η:

    1. u ← m·u + η·g;  send the top part of u;  u ← u/m where it was not sent  (SAMomentum, 4.3)
    2. Add the server's answer to the parameters

Server, on an update from worker w:

    3. θ ← θ - update
    4. Answer with the top part of θ - θ_w (secondary compression);  θ_w ← θ_w + answer

ASGD sends everything in both directions; gradient dropping has a residual in place of SAMomentum
(Aji and Heafield, 2017); asynchronous DGC has momentum correction.
"""

from __future__ import annotations

from typing import Any

from dgc.memory import MomentumCorrection, Residual
from dgc.parameter_server.composition import Asynchronous, dual_way


def dgs(compress_ratio: float = 0.01, **settings: Any) -> Asynchronous:
    """Return DGS.

    Args:
        compress_ratio: The density of updates and answers.
        settings: Others of ``dual_way``.
    """
    return dual_way(compress_ratio, **settings)


def asgd(**settings: Any) -> Asynchronous:
    """Return asynchronous SGD: everything is sent, with momentum on each worker."""
    return dual_way(1.0, **{'memory': MomentumCorrection(), **settings})


def gradient_dropping(compress_ratio: float = 0.01, **settings: Any) -> Asynchronous:
    """Return asynchronous gradient dropping: a residual, and no momentum."""
    return dual_way(compress_ratio, **{'memory': Residual(), **settings})


def async_dgc(compress_ratio: float = 0.01, **settings: Any) -> Asynchronous:
    """Return asynchronous Deep Gradient Compression: momentum correction and factor masking."""
    return dual_way(compress_ratio, **{'memory': MomentumCorrection(), **settings})
