"""Runs an example, and prints a digest of the parameters with which this rank ends, the bytes of
gradients that it sent, and those of dense training.

LAUNCHER python example_worker.py examples/FILE.py ARGUMENTS
"""

from __future__ import annotations

import hashlib
import runpy
import sys
from pathlib import Path

from dgc.progress import Progress


def digest(model) -> str:
    """The SHA-256 of all parameters, in order."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()


def noted() -> list[Progress]:
    """The counters of all optimizers and hooks that are made from now on."""
    made = []
    original = Progress.__init__

    def note(self, *arguments, **settings):
        original(self, *arguments, **settings)
        made.append(self)

    Progress.__init__ = note
    return made


if __name__ == '__main__':
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    counters = noted()
    model = runpy.run_path(sys.argv[0])['main']()
    sent = max((counter.sent for counter in counters), default=0)
    dense = max((counter.dense_sent for counter in counters), default=0)
    print(f'parameters {digest(model)} sent {sent} of {dense}', flush=True)
