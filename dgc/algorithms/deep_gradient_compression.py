"""Deep Gradient Compression (Lin et al., ICLR 2018, arXiv 1712.01887; Algorithms 1 to 4).

On each rank, for the gradient g of a bucket, with momentum m:

    1. Clip the local gradient                                (section 3.2)    dgc/clipping.py
    2. Momentum correction: u ← m·u + g,  v ← v + u           (equation 4)     dgc/memory/
    3. Select the fraction ρ of v with the largest magnitude, (Algorithm 1)    dgc/compressors/
       by a threshold from a sample                           (section 5)
    4. Momentum factor masking: v ← 0, u ← 0 where selected   (section 3.3)    dgc/memory/
    5. All ranks gather all messages, add them, divide by P                    dgc/exchanges/
    6. w ← w - lr·mean: the momentum was applied in step 2                     dgc/optim/

ρ falls exponentially during a warm-up (section 3.3). Where the release deviates from the paper:
it truncates an overfull selection by position (here: by magnitude), and loses the rounding of fp16
values (here: it returns to v).
"""

from __future__ import annotations

from collections.abc import Sequence

from dgc.checks import check_number, check_part
from dgc.clipping import Clipping
from dgc.codec import Codec
from dgc.composition import Composition
from dgc.compressors import Compressor, Dense, SampledTopK
from dgc.control import Control
from dgc.exchanges import AllGather, Exchange
from dgc.memory import Memory, MomentumCorrection
from dgc.planner import BySize, Planner
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule, density_of

NO_WARMUP = -1  # in the release, which has it as default; 0 here


def deep_gradient_compression(
    compress_ratio: float = 0.001,
    warmup_epochs: int = 0,
    warmup_coeff: float | Sequence[float] | None = None,
    warmup_stage_steps: int | None = None,
    warmup_steps: int = 0,
    sample_ratio: float = 0.01,
    strided_sample: bool = True,
    compress_upper_bound: float = 1.3,
    compress_lower_bound: float = 0.8,
    max_adaptation_iters: int = 10,
    resample: bool = True,
    fp16_values: bool = False,
    int32_indices: bool = False,
    values: str | None = None,
    indices: str | None = None,
    memory: Memory | None = None,
    compressor: Compressor | None = None,
    codec: Codec | None = None,
    exchange: Exchange | None = None,
    rules: LayerRules | None = None,
    planner: Planner | None = None,
    gradient_clipping: Clipping | None = None,
    nonfinite: str = 'stop',
    always_sparse: bool = False,
    control: Control | None = None,
) -> Composition:
    """Return the composition of the paper, by the setting names of its release.

    Args:
        compress_ratio: The density; above 1 its inverse (1000 for 0.1 %), 1 for uncompressed.
        warmup_epochs: Epochs in which the density falls to ``compress_ratio``.
        warmup_coeff: Density of each warm-up epoch, or a factor per epoch; see DensitySchedule.
        warmup_stage_steps: Steps of a warm-up stage, in place of an epoch's.
        warmup_steps: Optimizer steps in which the density falls to ``compress_ratio``, a little at
            each one; in place of ``warmup_epochs``, for loops without epochs.
        sample_ratio: Fraction of the elements from which the threshold is estimated.
        strided_sample: Whether the sample is evenly spaced; otherwise it is drawn uniformly.
        compress_upper_bound: Above this multiple of k, a selection is overfull.
        compress_lower_bound: Below this multiple of k, the threshold is lowered.
        max_adaptation_iters: The largest number of corrections of the threshold.
        resample: Whether an overfull selection is trimmed by its exact top-k at once.
        fp16_values: The same as values='fp16'.
        int32_indices: The same as indices='int32'.
        values: Coding of the values, see Codec; 'fp32' by default.
        indices: Coding of the indices, see Codec; 'int64' by default.
        memory: Error feedback, in place of MomentumCorrection.
        compressor: Selection, in place of SampledTopK; an exchange that selects needs none.
        codec: In place of the settings of codings.
        exchange: In place of AllGather.
        rules: Parameters that are never compressed, or have a density of their own.
        planner: Divides the parameters among buckets.
        gradient_clipping: Bounds on the local gradient.
        nonfinite: On an infinity or NaN, 'stop' or 'skip'; see Composition.
        always_sparse: Whether to send sparse messages also where they are longer than dense ones,
            as the release does.
        control: Changes the density during training, from what the ranks measure; None: nothing
            does.

    Raises:
        TypeError: For a setting of a wrong type.
        ValueError: Where settings contradict each other.
    """
    exchange = AllGather() if exchange is None else exchange
    check_part('exchange', exchange, Exchange, 'AllGather()')  # it is asked for what it selects
    if compressor is None and exchange.selects:
        compressor = Dense()
    return Composition(
        memory=memory or MomentumCorrection(),
        compressor=compressor
        or SampledTopK(
            sample_ratio=sample_ratio,
            strided_sample=strided_sample,
            compress_upper_bound=compress_upper_bound,
            compress_lower_bound=compress_lower_bound,
            max_adaptation_iters=max_adaptation_iters,
            resample=resample,
        ),
        codec=codec or wire_codec(fp16_values, int32_indices, values, indices),
        exchange=exchange,
        schedule=published_schedule(
            compress_ratio, warmup_epochs, warmup_coeff, warmup_stage_steps, warmup_steps
        ),
        rules=rules or LayerRules(),
        planner=planner or BySize(),
        clipping=gradient_clipping,
        nonfinite=nonfinite,
        always_sparse=always_sparse,
        control=control,
    )


def published_schedule(
    compress_ratio: float,
    warmup_epochs: int = 0,
    warmup_coeff: float | Sequence[float] | None = None,
    warmup_stage_steps: int | None = None,
    warmup_steps: int = 0,
) -> DensitySchedule:
    """Return the schedule of the published settings.

    Raises:
        TypeError: For a setting that is not a number.
        ValueError: For a ratio that is not above 0, or an incomplete warm-up.
    """
    check_number('compress_ratio', compress_ratio)
    if not compress_ratio > 0:
        raise ValueError(f'compress_ratio and warmup_coeff must be above 0, got {[compress_ratio]}')
    warmup_epochs = 0 if warmup_epochs == NO_WARMUP else warmup_epochs
    density = density_of(compress_ratio)
    return DensitySchedule(density, warmup_epochs, warmup_coeff, warmup_stage_steps, warmup_steps)


def wire_codec(
    fp16_values: bool, int32_indices: bool, values: str | None, indices: str | None
) -> Codec:
    """Return the codec of these settings; fp32 and int64 where there is none.

    Raises:
        ValueError: Where two of them set the same coding.
    """
    if fp16_values and values is not None:
        raise ValueError(f'values={values!r} is set already: leave out fp16_values')
    if int32_indices and indices is not None:
        raise ValueError(f'indices={indices!r} is set already: leave out int32_indices')
    if values is None:
        values = 'fp16' if fp16_values else 'fp32'
    if indices is None:
        indices = 'int32' if int32_indices else 'int64'
    return Codec(values, indices)
