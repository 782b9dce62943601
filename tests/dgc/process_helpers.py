"""Starting one of the workers beside the tests in processes of its own, under a real launcher."""

from __future__ import annotations

import subprocess
from pathlib import Path

import warm
from worlds import LAUNCHERS, environment

HERE = Path(__file__).parent


def start(launcher: str, size: int, worker: str, *arguments: str) -> str:
    """What ``size`` processes of a file in this folder write to stdout; they must succeed."""
    command = [word.format(size=size) for word in LAUNCHERS[launcher]]
    done = subprocess.run(
        warm.warmed([*command, str(HERE / worker), *arguments]),
        env=environment() | warm.environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
