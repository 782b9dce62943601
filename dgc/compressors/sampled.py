"""The largest elements, by a threshold that a sample gives (Lin et al., ICLR 2018, section 5)."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from dgc.compressors.base import Compressor, keep
from dgc.compressors.threshold import Correction, adapt, exactly
from dgc.corrected import Corrected
from dgc.sparse import Sparse

# Elements of a cache line come at the price of one, so a large sample is taken in short runs. They
# are no more independent than neighbours are; with MANY runs that costs the threshold little.
RUN = 4
MANY = 1024


class SampledTopK(Compressor):
    """Top-k by the threshold that a sample sets, at the cost of one comparison.

    The settings carry the names and defaults of the published release. An overfull selection is
    trimmed by magnitude; the release cuts it by position, which starves the end of every tensor.

    sample_ratio: share of the elements sampled, at least 1 % and at least ``2 / ratio`` elements.
    strided_sample: evenly spaced from a random start; otherwise drawn uniformly.
    compress_upper_bound: a selection above this multiple of ``k`` is overfull; where it is trimmed
        at once, so many are aimed at.
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
        return self.select(Corrected(corrected), ratio)

    def select(self, corrected: Corrected, ratio: float) -> Sparse:
        """At most ``keep(n, ratio)`` elements; ties at the threshold may leave fewer."""
        n = corrected.numel
        k = keep(n, ratio)
        draw = random.Random(self.seed * 1_000_003 + self.calls)
        self.calls += 1
        stride = sample_stride(n, max(n * self.sample_ratio, 2 / ratio))
        if stride == 1:
            return exactly(corrected, k).sparse
        sample = corrected.magnitudes(self._positions(corrected, stride, draw))
        threshold = float(torch.topk(sample, self._rank(sample.numel(), ratio)).values[-1])
        return adapt(corrected, threshold, k, self._correction()).sparse

    def _rank(self, samples: int, ratio: float) -> int:
        """Which of the largest of ``samples`` is the threshold. Too few candidates cost another
        pass, those to spare are trimmed; where they cost one too, it is the published rank."""
        rank = keep(samples, ratio)
        return min(math.ceil(self.upper_bound * rank), samples) if self.resample else rank

    def _positions(self, corrected: Corrected, stride: int, draw: random.Random) -> Tensor:
        """About ``n / stride`` positions of ``n``, int64: what the threshold is estimated from."""
        numel, device = corrected.numel, corrected.device
        if not self.strided_sample:  # drawn on the CPU, whose numbers are the same everywhere
            generator = torch.Generator().manual_seed(draw.getrandbits(63))
            return torch.randint(numel, (numel // stride,), generator=generator).to(device)
        run = RUN if numel // stride >= MANY * RUN else 1
        first, last = draw.randrange(run * stride), numel - run + 1
        starts = torch.arange(first, last, run * stride, device=device)
        return (starts[:, None] + torch.arange(run, device=device)).view(-1)

    def _correction(self) -> Correction:
        """The settings, in the terms of all thresholds."""
        return Correction(
            self.lower_bound,
            self.upper_bound,
            down=self.lower_bound,
            up=None if self.resample else self.upper_bound,
            iterations=self.max_adaptation_iters,
        )

    def state_dict(self) -> dict[str, int]:
        """How many samples were drawn so far."""
        return {'calls': self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on drawing where the saved compressor was."""
        self.calls = int(state.get('calls', 0))


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
