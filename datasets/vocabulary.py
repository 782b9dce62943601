"""Words and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ['UNKNOWN', 'Vocabulary']

UNKNOWN = '<unk>'


class Vocabulary:
    """The words that a model knows; all others are the word ``<unk>``.

    Args:
        words: In the order of their numbers, each once; ``<unk>`` is one of them.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._unknown = self._numbers[UNKNOWN]

    @classmethod
    def of(cls, texts: Iterable[Iterable[str]], size: int, first: Sequence[str] = ()) -> Vocabulary:
        """The most common words of some texts; of equally common ones, those first in the alphabet.

        Args:
            texts: Each a sequence of words.
            size: Number of words at most, with ``<unk>`` and ``first``.
            first: Words that get the first numbers.
        """
        counts: Counter[str] = Counter()
        for words in texts:
            counts.update(words)
        fixed = [*first, UNKNOWN]
        for word in fixed:
            del counts[word]
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        return cls([*fixed, *ordered[: max(size - len(fixed), 0)]])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> Tensor:
        """The numbers of some words, int32 [N]."""
        unknown = self._unknown
        return torch.tensor([self._numbers.get(w, unknown) for w in words], dtype=torch.int32)

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """The words of some numbers."""
        return [self.words[number] for number in numbers]
