"""Transcripts as letters with numbers. The number 0 is CTC's blank, and pads what is shorter."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ['LETTERS', 'encode', 'greedy', 'spell']

LETTERS = " 'abcdefghijklmnopqrstuvwxyz"


def encode(text: str, letters: str = LETTERS) -> Tensor:
    """The numbers of a transcript, int64 [length], from 1. Raises ValueError for other letters."""
    others = sorted(set(text) - set(letters))
    if others:
        raise ValueError(f'{text!r} has {"".join(others)!r}, which is not in {letters!r}')
    return torch.tensor([letters.index(letter) + 1 for letter in text], dtype=torch.int64)


def spell(numbers: Iterable[int], letters: str = LETTERS) -> str:
    """The transcript of some numbers, without padding."""
    return ''.join(letters[number - 1] for number in numbers if number)


def greedy(scores: Tensor, letters: str = LETTERS) -> list[str]:
    """The most probable path of each sample, repetitions joined, then without blanks.

    Args:
        scores: [batch, frames, 1 + letters].
        letters: Those of the numbers from 1.
    """
    paths = scores.argmax(-1).cpu()
    return [spell(path.unique_consecutive().tolist(), letters) for path in paths]
