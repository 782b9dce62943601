"""A client: one file that holds a program both without and with dgc.

Lines that end in ``# +`` are in the program with dgc only, and those that end in ``# -`` in the
program without it only.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / 'programs'
COMMON = FOLDER / 'common.py'
ADDED, REMOVED = re.compile(r'  # \+$'), re.compile(r'  # -$')


class Client(NamedTuple):
    """A program of the benchmark.

    Attributes:
        name: Of its file.
        title: As the tables have it.
        libraries: Imported once for all of its variants.
        spawns: Whether it starts its own ranks; else torchrun does.
    """

    name: str
    title: str
    libraries: tuple[str, ...] = ()
    spawns: bool = False

    @property
    def path(self) -> Path:
        """The file with both versions."""
        return FOLDER / f'{self.name}.py'


CLIENTS = (
    Client('tutorial', 'DDP tutorial, `mp.spawn`', spawns=True),
    Client('gpt', 'nanoGPT-like, AdamW, GradScaler'),
    Client('resnet', 'ImageNet-like, ResNet-18', ('torchvision',)),
    Client('language', 'word language model, LSTM'),
    Client('gan', 'GAN'),
    Client('actor_critic', 'actor and critic'),
    Client('with_lightning', 'Lightning', ('lightning.pytorch.strategies',)),
    Client('with_accelerate', 'Accelerate', ('accelerate',)),
    Client('with_trainer', 'Hugging Face Trainer', ('transformers.trainer',)),
)
BY_NAME = {client.name: client for client in CLIENTS}


def version(text: str, with_dgc: bool) -> str:
    """Return one of the two programs in a file, without the markers."""
    left_out, kept = (REMOVED, ADDED) if with_dgc else (ADDED, REMOVED)
    lines = [kept.sub('', line) for line in text.splitlines() if not left_out.search(line)]
    return re.sub(r'\n{4,}', '\n\n\n', '\n'.join(lines) + '\n')


def difference(text: str) -> list[str]:
    """Return the lines of a unified diff without context, each with its sign; no blank ones."""
    before, after = (version(text, with_dgc).splitlines() for with_dgc in (False, True))
    lines = difflib.unified_diff(before, after, n=0, lineterm='')
    signed = [line for line in lines if not line.startswith(('---', '+++', '@@'))]
    return [line for line in signed if line[1:].strip()]


def changed(text: str) -> tuple[int, int]:
    """Return how many lines dgc adds and removes."""
    lines = difference(text)
    return sum(line[0] == '+' for line in lines), sum(line[0] == '-' for line in lines)
