"""What the workers of a benchmark are to measure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Spec:
    """One launch of a set of workers.

    model: of WORKLOADS; batch: samples per worker and step.
    rows: full names of the rows to measure, all of one engine.
    rounds, steps: a row makes at most ``steps`` steps in each of at most ``rounds`` rounds.
    seconds: time limit per row, for which it makes fewer steps, but at least two.
    interface: of each worker's own network, whose sent bytes are counted; '' for none. With one,
        the workers wait at a gate before they measure, until their links have their rate.
    answer: path of the file for the results.
    """

    model: str
    batch: int
    rows: list[str]
    rounds: int
    steps: int
    seconds: float
    interface: str = ''
    answer: str = ''

    @classmethod
    def read(cls, path: Path) -> Spec:
        """Read the specification that ``tools.harness.spec.run_with_spec`` wrote."""
        return cls(**json.loads(path.read_text()))
