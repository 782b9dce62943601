"""The command lines of documentation pages that start train.py."""

from __future__ import annotations

import re
from pathlib import Path

LAUNCHERS = ('horovodrun', 'torchrun', 'mpirun', 'python', 'OMP_NUM_THREADS=1')


def command_lines(page: Path) -> list[str]:
    """Return the command lines of a page that start train.py with config files.

    Each is in one line, with the shell variables that the page sets put in, without its comment.
    """
    text = page.read_text().replace('\\\n', ' ')
    for name, value in re.findall(r'^ +([A-Z]+)="(.*?)"', text, re.M | re.S):
        text = text.replace(f'${name}', ' '.join(value.split()))
    lines = [line.strip() for line in text.splitlines() if 'train.py --configs configs' in line]
    return [re.sub(r' #.*', '', line) for line in lines if line.startswith(LAUNCHERS)]
