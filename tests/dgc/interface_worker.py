"""A case of test_horovod_interface on real ranks of torch."""

from __future__ import annotations

import dgc
from dgc.engines import TorchEngine


def closed_twice(_: dgc.Engine) -> bool:
    """Whether an engine beside that of the world is closed after two calls."""
    engine = TorchEngine()
    engine.barrier()  # gloo connects the ranks until then
    engine.close()
    engine.close()
    return engine.is_closed
