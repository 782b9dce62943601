"""Windows of a long sequence of tokens, from which language models learn."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from datasets.errors import DatasetError

__all__ = ['IGNORED', 'MaskedWindows', 'StreamWindows', 'Windows']

IGNORED = -100  # the target of a position that is not predicted, as in torch's cross_entropy
Pair = tuple[Tensor, Tensor]


class Windows(Dataset[Pair]):
    """Pairs (tokens [T], the tokens after them [T]), int64, cut from N tokens without overlap.

    Each of the N - 1 tokens after the first is predicted once. The last window may be shorter: the
    targets after its end are ``IGNORED``.

    Args:
        tokens: Integers [N].
        length: T.
        shift: Whether each window begins up to T - 1 tokens later, at random, so that its tokens
            are not always at the same positions. Random numbers come from torch's global generator;
            a window that would reach beyond the end begins earlier.
        setting: Named in the error.

    Raises:
        DatasetError: If there are fewer than T + 1 tokens.
    """

    def __init__(
        self, tokens: Tensor, length: int, shift: bool = False, setting: str = 'length'
    ) -> None:
        if not 1 <= length < len(tokens):
            raise DatasetError.about(
                setting, length, f'the text has {len(tokens)} tokens', 'choose 1 or more, and fewer'
            )
        self.tokens, self.length, self.shift = tokens, length, shift
        self.tokens_per_sample = length
        self._steps = torch.arange(length + 1)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.tokens) - 1, self.length)
        return whole + (rest > 0 and not self.shift)

    def __getitem__(self, index: int) -> Pair:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Pair]:
        begin = torch.tensor([range(len(self))[index] for index in indices]) * self.length
        if self.shift:
            begin += torch.randint(self.length, (len(indices),))
            begin.clamp_(max=len(self.tokens) - 1 - self.length)
        positions = begin[:, None] + self._steps  # [B, T + 1]
        inside = positions < len(self.tokens)
        found = self.tokens[positions.clamp(max=len(self.tokens) - 1)].long()
        targets = found[:, 1:].masked_fill(~inside[:, 1:], IGNORED)
        return list(zip(found[:, :-1], targets, strict=True))


class StreamWindows(Windows):
    """Windows of which a batch continues the batch before, for truncated back-propagation.

    Args:
        tokens, length, setting: See ``Windows``.
        streams: In how many streams the text is evaluated. Each begins without what came before.
    """

    def __init__(self, tokens: Tensor, length: int, streams: int, setting: str = 'length') -> None:
        super().__init__(tokens, length, setting=setting)
        self.streams = streams


class MaskedWindows(Dataset[Pair]):
    """Pairs (tokens of which some are hidden [T], the hidden ones [T]) (Devlin et al., 2019).

    Of the tokens of a window ``share`` are chosen, at least one. Of these 80 % become the token
    ``mask``, 10 % a random one, and 10 % stay. Targets elsewhere are ``IGNORED``.

    Args:
        windows: The windows, of which only the first tensor is used, and a shorter last one is not.
        mask: The token that hides others, which is also the number of other tokens.
        share: Of the tokens that are predicted.
        seed: If given, a sample is masked alike every time, by this seed and its index. None: anew,
            by torch's global generator.
    """

    def __init__(
        self, windows: Windows, mask: int, share: float = 0.15, seed: int | None = None
    ) -> None:
        self.windows, self.mask, self.share, self.seed = windows, mask, share, seed
        self.tokens_per_sample = windows.length

    def __len__(self) -> int:
        return (len(self.windows.tokens) - 1) // self.windows.length

    def __getitem__(self, index: int) -> Pair:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Pair]:
        tokens = [tokens for tokens, _ in self.windows.__getitems__(indices)]
        if self.seed is None:
            return [self._hide(each, None) for each in tokens]
        seeds = [1_000_003 * self.seed + index for index in indices]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return list(map(self._hide, tokens, generators))

    def _hide(self, tokens: Tensor, generator: torch.Generator | None) -> Pair:
        """Hide some tokens of a window [T]."""
        count = max(1, round(self.share * len(tokens)))
        chosen = torch.randperm(len(tokens), generator=generator)[:count]
        fate = torch.rand(count, generator=generator)
        other = torch.randint(self.mask, (count,), generator=generator)
        targets = torch.full_like(tokens, IGNORED)
        targets[chosen] = tokens[chosen]
        hidden = tokens.clone()
        hidden[chosen[fate < 0.8]] = self.mask
        hidden[chosen[fate >= 0.9]] = other[fate >= 0.9]
        return hidden, targets
