"""Damage to checkpoints, drawn by a seed, and what the search for the last good one makes of it."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import dgc
from utils import sealed
from utils import search as searching
from utils.checkpoint import CheckpointError, Checkpoints, Position, file_name
from utils.search import Saved, Search

BLOCK = 4096  # bytes
RANKS = 2


@dataclass(frozen=True)
class Damaged:
    """What was done.

    Attributes:
        kind: One of KINDS.
        files: The names of the files whose content is not what it was.
    """

    kind: str
    files: tuple[str, ...]


def flip_bit(folder: Path, draw: random.Random) -> tuple[str, ...]:
    """Flip one bit of one file."""
    path, raw = draw_file(folder, draw)
    raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    return written(path, raw)


def zero_block(folder: Path, draw: random.Random) -> tuple[str, ...]:
    """Zero a block of one file, as a lost page of a disk is."""
    path, raw = draw_file(folder, draw)
    start = draw.randrange(0, len(raw), BLOCK)
    length = len(raw[start : start + BLOCK])
    raw[start : start + length] = bytes(length)
    return written(path, raw)


def cut(folder: Path, draw: random.Random) -> tuple[str, ...]:
    """Cut one file at any length."""
    path, raw = draw_file(folder, draw)
    del raw[draw.randrange(len(raw)) :]
    return written(path, raw)


def remove(folder: Path, draw: random.Random) -> tuple[str, ...]:
    """Remove one file."""
    path, _ = draw_file(folder, draw)
    path.unlink()
    return (path.name,)


def swap_ranks(folder: Path, draw: random.Random) -> tuple[str, ...]:
    """Swap the files of two ranks of one position."""
    position = draw.choice(positions(folder))
    return swap(folder, *(file_name(position, rank, RANKS) for rank in range(RANKS)))


def swap_positions(folder: Path, draw: random.Random) -> tuple[str, ...]:
    """Swap the files of two positions of one rank, or of all."""
    one, other = draw.sample(positions(folder), 2)
    names: tuple[str, ...] = ()
    for rank in draw.choice([[0], [1], [0, 1]]):
        names += swap(folder, *(file_name(each, rank, RANKS) for each in (one, other)))
    return names


KINDS: Mapping[str, Callable[[Path, random.Random], tuple[str, ...]]] = {
    'a bit flipped': flip_bit,
    'a block of 4 kB zeroed': zero_block,
    'cut at any length': cut,
    'removed': remove,
    'swapped between ranks': swap_ranks,
    'swapped between positions': swap_positions,
}


def positions(folder: Path) -> list[Position]:
    """The positions of which there are files."""
    return sorted(position for position, _ in Checkpoints(folder).saved())


def draw_file(folder: Path, draw: random.Random) -> tuple[Path, bytearray]:
    """A file and its content. Later positions are drawn more often, since they are read first."""
    found = positions(folder)
    position = draw.choices(found, weights=range(1, len(found) + 1))[0]
    path = folder / file_name(position, draw.randrange(RANKS), RANKS)
    return path, bytearray(path.read_bytes())


def written(path: Path, raw: bytearray) -> tuple[str, ...]:
    """Replace a file; returns its name, or none where the content is the same."""
    before = path.read_bytes()
    path.write_bytes(raw)
    return () if before == raw else (path.name,)


def swap(folder: Path, one: str, other: str) -> tuple[str, ...]:
    """Swap two files; returns their names."""
    kept = (folder / one).read_bytes()
    (folder / one).write_bytes((folder / other).read_bytes())
    (folder / other).write_bytes(kept)
    return (one, other)


@contextmanager
def recorded() -> Iterator[list[str]]:
    """The lines that the search logs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger, before = searching.log, searching.log.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def search(folder: Path, model: nn.Module) -> list[Saved | None]:
    """The checkpoint that each of two simulated ranks goes on from; the code of train.py."""
    return dgc.simulate(
        RANKS,
        lambda engine: Search(engine, torch.device('cpu'), folder).last(model),
    )


def judge(folder: Path, model: nn.Module, damaged: Damaged, originals: Path) -> str:
    """What is wrong with what the search makes of the damage; '' for nothing.

    Args:
        folder: The damaged checkpoints.
        model: Whose checkpoints they are.
        damaged: What was done.
        originals: The checkpoints as they were.
    """
    bad = set(damaged.files)
    good = [
        position
        for position in positions(originals)
        if not bad & {file_name(position, rank, RANKS) for rank in range(RANKS)}
    ]
    with recorded() as lines:
        try:
            found = search(folder, model)
        except CheckpointError:
            return 'no checkpoint was found' if good else ''
    if len({saved and saved.position for saved in found}) > 1:
        return 'ranks go on from different positions'
    for rank, saved in enumerate(found):
        assert saved is not None
        if saved.position != good[-1]:
            return f'{saved.position} is used, and {good[-1]} is the last good one'
        whole = sealed.read(originals / file_name(saved.position, rank, RANKS))
        if fingerprint(saved.state) != fingerprint(whole):
            return f'rank {rank} has read another state of {saved.position}'
    later = [position for position in positions(originals) if position > good[-1]]
    if any(not any(f'{position}.r' in line for line in lines) for position in later):
        return 'a damaged file is not named'
    return ''


def fingerprint(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and checksums of all tensors."""
    return [(name, sealed.checksum(tensor)) for name, tensor in sealed.tensors(dict(state))]


def trials(
    originals: Path, model: nn.Module, count: int, seed: int, first: int = 0
) -> Iterator[tuple[int, str, str]]:
    """Damage copies of a folder of checkpoints.

    Args:
        originals: The folder, which stays as it is.
        model: Whose checkpoints they are.
        count: Of trials.
        seed: Of what is drawn.
        first: The number of trials that are left out.

    Yields:
        The number of the trial, the kind of damage, and what was wrong, '' for nothing.
    """
    kinds = list(KINDS.items())
    for number in range(first, count):
        kind, damage = kinds[number % len(kinds)]
        draw = random.Random(f'{seed} {number}')
        with TemporaryDirectory(prefix='faults') as name:
            folder = Path(name) / 'run' / 'checkpoints'
            shutil.copytree(originals, folder)
            damaged = Damaged(kind, damage(folder, draw))
            try:
                wrong = judge(folder, model, damaged, originals)
            except Exception as error:
                wrong = f'{type(error).__name__}: {error}'
            yield number, kind, wrong and f'{wrong} ({number}: {damaged.files})'
