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
from dgc.state import Resize

# A cache line is read as a whole, so a large sample is taken in short runs of neighbours. These are
# correlated; from MANY runs on, that changes the estimated threshold little.
RUN = 4
MANY = 1024


class SampledTopK(Compressor):
    """Top-k by a threshold that is estimated from a sample, at the cost of one comparison.

    The settings carry the names and defaults of the published release. An overfull selection is
    trimmed by magnitude; the release cuts it by position, which starves the end of every tensor.

    Args:
        sample_ratio: Fraction of the elements sampled; at least 1 % and at least ``2 / density``
            elements are.
        strided_sample: Evenly spaced from a random start; otherwise drawn uniformly.
        compress_upper_bound: A selection above this multiple of ``k`` is overfull; where it is
            trimmed at once, the estimate aims at so many.
        compress_lower_bound: Below this multiple, the threshold is lowered by the same factor.
        max_adaptation_iters: The largest number of corrections of the threshold.
        resample: An overfull selection is trimmed at once, by its exact top-k; otherwise the
            threshold is raised by ``compress_upper_bound`` first.
        seed: Of the sampled positions, the same on all ranks.

    Raises:
        ValueError: For bounds that do not enclose 1.
    """

    remembers = Resize.REPLICATED

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

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return at most ``keep(n, density)`` elements; ties at the threshold may leave fewer."""
        n = corrected.numel
        k = keep(n, density)
        calls = corrected.state.get('calls', 0)
        corrected.state['calls'] = calls + 1
        draw = random.Random(self.seed * 1_000_003 + calls)
        stride = sample_stride(n, max(n * self.sample_ratio, 2 / density))
        if stride == 1:
            return exactly(corrected, k).sparse
        sample = corrected.magnitudes(self._positions(corrected, stride, draw))
        threshold = float(torch.topk(sample, self._rank(sample.numel(), density)).values[-1])
        return adapt(corrected, threshold, k, self._correction()).sparse

    def _rank(self, samples: int, density: float) -> int:
        """Return r, such that the threshold is the r-th largest of ``samples`` sampled magnitudes.

        Too few candidates cost another pass over memory and surplus ones are trimmed, so it aims
        high; where surplus ones cost a pass too, it is the published rank.
        """
        rank = keep(samples, density)
        return min(math.ceil(self.upper_bound * rank), samples) if self.resample else rank

    def _positions(self, corrected: Corrected, stride: int, draw: random.Random) -> Tensor:
        """Draw about ``n / stride`` of ``n`` positions, int64, to estimate the threshold from."""
        numel, device = corrected.numel, corrected.device
        if not self.strided_sample:  # drawn on the CPU, whose numbers are the same everywhere
            generator = torch.Generator().manual_seed(draw.getrandbits(63))
            return torch.randint(numel, (numel // stride,), generator=generator).to(device)
        run = RUN if numel // stride >= MANY * RUN else 1
        first, last = draw.randrange(run * stride), numel - run + 1
        starts = torch.arange(first, last, run * stride, device=device)
        return (starts[:, None] + torch.arange(run, device=device)).view(-1)

    def _correction(self) -> Correction:
        """Return the settings as a ``Correction``."""
        return Correction(
            self.lower_bound,
            self.upper_bound,
            down=self.lower_bound,
            up=None if self.resample else self.upper_bound,
            iterations=self.max_adaptation_iters,
        )


def sample_stride(numel: int, samples: float) -> int:
    """Return the stride that takes at least ``samples`` of ``numel`` elements.

    Odd, and one more than a multiple of 32 where it is large: a stride that shares a factor with
    a layer's width, usually a power of two, would sample the same few columns again and again.
    It is 1 (all elements) where there are no more than ``samples``.
    """
    widest = int(numel // math.ceil(samples)) if samples < numel else 1
    if widest > 32:
        return (widest - 1) // 32 * 32 + 1
    return max(widest - (widest + 1) % 2, 1)
