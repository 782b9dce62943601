"""One worker of a calibration: `LAUNCHER python -m tools.plan.calibration_worker SPEC`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import dgc
from dgc.costmodel import calibrate
from tools.harness.spec import write_json


def main(path: str) -> None:
    """Calibrate; rank 0 writes the result to the file that the specification at ``path`` names."""
    engine = dgc.create()
    calibration = calibrate(engine)
    if engine.rank == 0:
        write_json(Path(json.loads(Path(path).read_text())['answer']), asdict(calibration))
    engine.barrier()
    engine.close()


if __name__ == '__main__':
    main(sys.argv[1])
