"""What every composition owes, from one table: a new composition is one row.

Conservation, per worker and across the cluster; agreement; at ratio 1.0, momentum SGD; flushing
when sparse turns to dense; state through a checkpoint.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from dgc_helpers import Selection, owed, parameters, train, values, watch, wrap
from dgc_helpers import loss as pull
from torch import Tensor

import dgc
from dgc.buckets import PerTensor
from dgc.clipping import ClipByGlobalNorm, ClipByModelNorm, ClipByNorm, ClipByValue
from dgc.codec import PlainCodec
from dgc.compressors import SampledTopK, TopK
from dgc.memory import MomentumCorrection, Residual

sparse = partial(dgc.deep_gradient_compression, compress_ratio=0.02)

# Name: what makes a fresh composition. A row that is called dense sends everything, always.
TABLE: dict[str, Callable[[], dgc.Composition]] = {
    'dense': dgc.dense,
    'dense, small buckets': lambda: dgc.dense(planner=PerTensor(dense_bytes=8)),
    'dense, residual': lambda: dgc.Composition(memory=Residual()),
    'dense, skip': lambda: dgc.dense(nonfinite='skip'),
    'dgc': sparse,
    'dgc fp16 int32': lambda: sparse(fp16_values=True, int32_indices=True),
    'dgc bf16': lambda: sparse(codec=PlainCodec('bf16', 'int32')),
    'dgc inverse ratio': lambda: sparse(compress_ratio=50),
    'dgc exact': lambda: sparse(compressor=TopK()),
    'dgc exact fp16': lambda: sparse(compressor=TopK(), fp16_values=True),
    'dgc uniform sample': lambda: sparse(strided_sample=False),
    'dgc no resample': lambda: sparse(resample=False),
    'dgc no masking': lambda: sparse(memory=MomentumCorrection(momentum_masking=False)),
    'dgc no masking bf16': lambda: sparse(
        memory=MomentumCorrection(momentum_masking=False), codec=PlainCodec('bf16', 'int64')
    ),
    'dgc warm-up': lambda: sparse(
        warmup_epochs=3, warmup_coeff=[0.1, 0.05, 0.03], warmup_stage_steps=4
    ),
    'dgc own ratios': lambda: sparse(rules=dgc.LayerRules(ratios={'wide.*': 0.05})),
    'dgc dense layers': lambda: sparse(rules=dgc.LayerRules(dense=['narrow.*'], min_numel=100)),
    'dgc where dense is cheaper': lambda: sparse(
        compress_ratio=0.5, rules=dgc.LayerRules(ratios={'wide.*': 0.02})
    ),
    'dgc clip value': lambda: sparse(gradient_clipping=ClipByValue(0.5)),
    'dgc clip norm': lambda: sparse(gradient_clipping=ClipByNorm(1.0)),
    'dgc clip model norm': lambda: sparse(gradient_clipping=ClipByModelNorm(1.0)),
    'dgc clip global norm': lambda: sparse(gradient_clipping=ClipByGlobalNorm(1.0)),
    'dgc skip': lambda: sparse(nonfinite='skip'),
    'residual exact': lambda: sparse(memory=Residual(), compressor=TopK()),
    'residual sampled': lambda: sparse(memory=Residual(), compressor=SampledTopK(seed=3)),
    'residual fp16': lambda: sparse(memory=Residual(), fp16_values=True, int32_indices=True),
}
WORKERS = (1, 2, 3, 4, 5)
MOMENTA = {'plain': (0.0, False), 'momentum': (0.9, False), 'nesterov': (0.9, True)}
STEPS = 20

rows = pytest.mark.parametrize('row', TABLE)
worlds = pytest.mark.parametrize('workers', WORKERS)
momenta = pytest.mark.parametrize(('momentum', 'nesterov'), MOMENTA.values(), ids=MOMENTA)


@dataclass
class Diary:
    """What one worker noted: by bucket, its selections, and P times each mean that came back."""

    composition: dgc.Composition
    selections: dict[str, list[Selection]]
    totals: dict[str, list[Tensor]]
    snapshots: list[list[Tensor]]
    kept: dict[str, Tensor]
    progress: dgc.reducer.Progress


def keep_diary(
    engine: dgc.Engine, composition: dgc.Composition, steps: int, momentum: float, nesterov: bool
) -> Diary:
    """Train with weight decay, and note everything."""
    named = parameters()
    selections = watch(composition)
    optimizer = wrap(
        named,
        composition,
        engine,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=0.01,
        steps_per_epoch=3,
    )
    buckets = optimizer.reducer.buckets
    totals, snapshots = {bucket.name: [] for bucket in buckets}, []
    for step in range(steps):
        optimizer.zero_grad()
        pull(named, engine.rank, step).backward()
        optimizer.synchronize()
        for bucket in buckets:
            totals[bucket.name].append(bucket.gradient.double() * engine.size)
        optimizer.step()
        snapshots.append(values(named))
    kept = {bucket.name: helpers_kept(bucket) for bucket in buckets}
    return Diary(composition, selections, totals, snapshots, kept, optimizer.reducer.progress)


def helpers_kept(bucket: dgc.buckets.Bucket) -> Tensor:
    held = [bucket.buffers[name] for name in ('residual', 'velocity') if name in bucket.buffers]
    return held[0].double() if held else torch.zeros(bucket.numel, dtype=torch.float64)


@pytest.fixture(scope='module', params=WORKERS, ids=lambda workers: f'{workers} workers')
def workers(request) -> int:
    return request.param


class TestOneRun:
    """Properties read from one run, which is made once for each row, number and momentum."""

    @pytest.fixture(scope='class', params=TABLE)
    def row(self, request) -> str:
        return request.param

    @pytest.fixture(scope='class', params=MOMENTA.values(), ids=MOMENTA)
    def momentum(self, request) -> tuple[float, bool]:
        return request.param

    @pytest.fixture(scope='class')
    def diaries(self, row, workers, momentum) -> list[Diary]:
        return dgc.simulate(
            workers, lambda engine: keep_diary(engine, TABLE[row](), STEPS, *momentum)
        )
