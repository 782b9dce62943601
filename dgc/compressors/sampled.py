"""The largest elements, by a threshold that a sample gives (Lin et al., ICLR 2018, section 5)."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from dgc.compressors.base import Compressor, keep
from dgc.compressors.topk import largest
from dgc.sparse import Sparse, gather


class SampledTopK(Compressor):
    """Top-k by the threshold that the top-k of a sample sets, at the cost of one comparison.

    The settings carry the names and defaults of the published release. An overfull selection is
    trimmed by magnitude; the release cuts it by position, which starves the end of every tensor.

    sample_ratio: share of the elements sampled, at least 1 % and at least ``2 / ratio`` elements.
    strided_sample: every stride-th element from a random start; otherwise drawn uniformly.
    compress_upper_bound: a selection above this multiple of ``k`` is overfull.
    compress_lower_bound: below this multiple, the threshold is lowered by the same factor.
    max_adaptation_iters: how often the threshold may be corrected.
    resample: an overfull selection is trimmed at once, by its exact top-k; otherwise the threshold
        is raised by ``compress_upper_bound`` first.
    seed: of the sampled positions, alike on all workers.
    """

    def __init__(
        self,
        sample_ratio: float = 0.01,
        strided_sample: bool = True,
        compress_upper_bound: float = 1.3,
        compress_lower_bound: float = 0.8,
        max_adaptation_iters: int = 10,
        resample: bool = True,
        seed: int = 0,
    ) -> None:
        if not 0 < compress_lower_bound < 1 < compress_upper_bound:
            raise ValueError(
                'compress_lower_bound must lie between 0 and 1, and compress_upper_bound above 1, '
                f'got {compress_lower_bound} and {compress_upper_bound}'
            )
        self.sample_ratio = min(max(sample_ratio, 0.01), 1.0)
        self.strided_sample = strided_sample
        self.upper_bound = compress_upper_bound
        self.lower_bound = compress_lower_bound
        self.max_adaptation_iters = max_adaptation_iters
        self.resample = resample
        self.seed = seed
        self.calls = 0

    def compress(self, corrected: Tensor, ratio: float) -> Sparse:
        """At most ``keep(n, ratio)`` elements; ties at the threshold may leave fewer."""
        n = corrected.numel()
        k = keep(n, ratio)
        importance = corrected.abs()
        draw = random.Random(self.seed * 1_000_003 + self.calls)
        self.calls += 1
        stride = sample_stride(n, max(n * self.sample_ratio, 2 / ratio))
        if stride == 1:
            return gather(corrected, largest(importance, k))
        sample = self._sample(importance, stride, draw)
        threshold = float(torch.topk(sample, keep(sample.numel(), ratio)).values[-1])
        return gather(corrected, self._adapt(importance, threshold, k))

    def _sample(self, importance: Tensor, stride: int, draw: random.Random) -> Tensor:
        """Float32 ``[about n / stride]``: what the threshold is estimated from."""
        if self.strided_sample:
            return importance[draw.randrange(stride) :: stride]
        count = importance.numel() // stride
        generator = torch.Generator().manual_seed(draw.getrandbits(63))
        positions = torch.randint(importance.numel(), (count,), generator=generator)
        return importance[positions.to(importance.device)]

    def _adapt(self, importance: Tensor, threshold: float, k: int) -> Tensor:
        """Positions of at most ``k`` elements at or above a threshold that is corrected until
        their number lies between the bounds."""
        selected = above(importance, threshold)
        for _ in range(self.max_adaptation_iters):
            if selected.numel() < self.lower_bound * k and threshold > 0:
                threshold *= self.lower_bound
            elif selected.numel() > self.upper_bound * k and not self.resample:
                threshold *= self.upper_bound
            else:
                break
            selected = above(importance, threshold)
        if threshold > 0 and not selected.numel():  # ties that no threshold could part
            return largest(importance, k)
        if selected.numel() > k:
            selected = selected[largest(importance[selected], k)]
        return selected

    def state_dict(self) -> dict[str, int]:
        """How many samples were drawn so far."""
        return {'calls': self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on drawing where the saved compressor was."""
        self.calls = int(state.get('calls', 0))


def above(importance: Tensor, threshold: float) -> Tensor:
    """Positions in ``importance[n]`` at or above ``threshold``; zeros never count.

    Where more than the wanted number tie, which a constant tensor does, the caller trims them.
    """
    selected = importance >= threshold if threshold > 0 else importance > 0
    return selected.nonzero().view(-1)


def sample_stride(numel: int, samples: float) -> int:
    """The stride that takes at least ``samples`` of ``numel`` elements.

    Odd, and one more than a multiple of 32 where it is large: a stride that shares a factor with
    a layer's width, usually a power of two, would sample the same few columns again and again.
    Returns 1, all elements, when there are no more than ``samples``.
    """
    widest = int(numel // math.ceil(samples)) if samples < numel else 1
    if widest > 32:
        return (widest - 1) // 32 * 32 + 1
    return max(widest - (widest + 1) % 2, 1)
