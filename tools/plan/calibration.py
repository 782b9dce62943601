"""What moving bytes costs this host: measured between two of its processes, or read from a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cluster import say
from bench.launch import ending
from bench.spec import write_json
from bench.step import start
from dgc.costmodel import Calibration, Network
from utils.cli import Refused

WORKER = 'tools.plan.calibration_worker'
PATIENCE = 300.0  # seconds


def obtain(file: Path | None) -> Calibration:
    """What ``file`` holds; where there is no such file, measured, and kept there.

    Raises Refused where the file holds something else, or the workers fail.
    """
    if file is not None and file.exists():
        return read(file)
    calibration = measure()
    if file is not None:
        write_json(file, asdict(calibration))
    return calibration


def read(file: Path) -> Calibration:
    """What :func:`obtain` wrote."""
    try:
        content = json.loads(file.read_text())
        networks = {name: Network(**content[name]) for name in ('network', 'processor')}
        return Calibration(**{**content, **networks})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(
            f'--calibration: {file} holds no calibration ({error}): delete it, and it is measured'
        ) from error


def measure() -> Calibration:
    """By two workers on this host, one thread each."""
    say('two workers measure what moving bytes costs this host')
    with TemporaryDirectory(prefix='plan') as name:
        answer = Path(name) / 'answer.json'
        write_json(Path(name) / 'spec.json', {'answer': str(answer)})
        status = start('torchrun', 2, PATIENCE, Path(name), WORKER)
        if not answer.exists():
            raise Refused(f'the calibration failed: {ending(status)}')
        return read(answer)
