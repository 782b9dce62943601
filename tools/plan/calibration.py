"""The cost of moving bytes on this host: measured between two processes, or read from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dgc.costmodel import Calibration, Network
from tools.harness.cli import log
from tools.harness.launch import describe_status, run_workers
from tools.harness.spec import run_with_spec, write_json
from utils.cli import Refused

WORKER = 'tools.plan.calibration_worker'
TIMEOUT = 300.0  # seconds


def obtain(file: Path | None) -> Calibration:
    """Read the calibration from ``file``; if there is no such file, measure it and write the file.

    Raises:
        Refused: the file holds no calibration, or the workers fail.
    """
    if file is None or not file.exists():
        calibration = measure()
        if file is not None:
            write_json(file, asdict(calibration))
        return calibration
    try:
        return from_json(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(
            f'--calibration: {file} holds no calibration ({error}): delete it, and it is measured'
        ) from error


def from_json(content: Mapping[str, Any]) -> Calibration:
    """A calibration from its ``asdict``. Raises TypeError or KeyError for other content."""
    networks = {name: Network(**content[name]) for name in ('network', 'processor')}
    return Calibration(**{**content, **networks})


def measure() -> Calibration:
    """Calibrate with two workers on this host, of one thread each. Raises Refused if they fail."""
    log('two workers measure what moving bytes costs this host')

    def start(folder: Path) -> int:
        return run_workers('torchrun', 2, WORKER, folder, TIMEOUT)

    status, answer = run_with_spec({}, start)
    if not answer:
        raise Refused(f'the calibration failed: {describe_status(status)}')
    return from_json(answer)
