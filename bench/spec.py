"""What the workers of one launch are asked to measure, and the file that they answer with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spec:
    """One launch.

    model: of the workloads; batch: samples a worker.
    rows: full names, of one engine.
    rounds, steps: at most so many steps a row, ``steps`` in each round.
    seconds: that a row may take, within which it makes fewer steps, but at least two.
    answer: the file for what was measured.
    interface: whose sent bytes are counted, of each worker's own network; '' for none.
    gate: folder of the gate that workers wait at before they measure; '' for none.
    """

    model: str
    batch: int
    rows: list[str]
    rounds: int
    steps: int
    seconds: float
    answer: str
    interface: str = ''
    gate: str = ''

    def write(self, path: Path) -> None:
        """As JSON."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Spec:
        """What :meth:`write` wrote."""
        return cls(**json.loads(path.read_text()))


def write_json(path: Path, content: Any) -> None:
    """All of it or nothing, however the process ends."""
    scratch = path.with_name(f'{path.name}.new')
    scratch.write_text(json.dumps(content, indent=1) + '\n')
    scratch.replace(path)
