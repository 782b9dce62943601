"""Build the wheel of this checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ('pyproject.toml', 'README.md', 'LICENSE', 'dgc')


def build_wheel(into: Path, *options: str) -> Path:
    """Build the wheel from a copy of its sources, and return its path.

    In the checkout, setuptools would put files that are long deleted into it, from ``build/lib``.

    Args:
        into: the folder for the wheel, from which older ones are removed.
        options: for pip.
    """
    for old in into.glob('dgc-*.whl'):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, Path(folder) / name)
        command = [sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', *options]
        subprocess.run([*command, '-w', str(into), folder], check=True)
    (wheel,) = into.glob('dgc-*.whl')
    return wheel
