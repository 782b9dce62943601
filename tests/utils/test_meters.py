"""Meters against plain computations, and that they add up over workers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.meters import MeterError, TopK


def plain_percentage(outputs: torch.Tensor, targets: torch.Tensor, k: int) -> float:
    """Samples whose class has fewer than ``k`` classes scored above it."""
    correct = 0
    for scores, target in zip(outputs.tolist(), targets.tolist(), strict=True):
        correct += sum(score > scores[target] for score in scores) < k
    return 100 * correct / max(len(targets), 1)


@given(st.integers(0, 40), st.integers(2, 12), st.integers(1, 11), st.integers(1, 3), st.data())
@settings(deadline=None)
def test_topk_is_the_plain_percentage_however_it_is_cut(samples, classes, k, workers, data):
    k, seed = min(k, classes - 1), data.draw(st.integers(0, 999))
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(samples, classes, generator=generator)
    targets = torch.randint(classes, (samples,), generator=generator)
    sums = torch.zeros(2, dtype=torch.float64)
    for rank in range(workers):
        meter = TopK(k)
        for part in range(rank, samples, workers):  # batches of one
            meter.update(outputs[part : part + 1], targets[part : part + 1])
        sums += meter.sums()
    assert TopK.value(sums) == pytest.approx(plain_percentage(outputs, targets, k))


def test_a_whole_batch_at_once():
    outputs = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5]])
    targets = torch.tensor([1, 1, 0])
    results = {}
    for k in (1, 2):
        meter = TopK(k)
        meter.update(outputs, targets)
        results[k] = TopK.value(meter.sums())
    assert results == {1: pytest.approx(100 / 3), 2: pytest.approx(200 / 3)}


def test_nothing_seen_is_no_error():
    assert TopK.value(TopK().sums()) == 0.0


def test_counts_stay_exact_where_float32_would_round():
    meter = TopK()
    meter.correct = meter.count = 2**24 + 1
    assert meter.sums().tolist() == [2**24 + 1, 2**24 + 1]


@pytest.mark.parametrize(
    ('outputs', 'targets', 'message'),
    [
        (torch.ones(2, 1), torch.ones(2, 1), r'scores \[batch, classes\].*\[2, 1\].*float32'),
        (torch.ones(2, 9), torch.ones(2), 'whole numbers.*float32'),
        (torch.ones(2, 9), torch.ones(2, 9, dtype=torch.long), r'targets \[2, 9\]'),
        (torch.ones(2, 9, 9), torch.ones(2, dtype=torch.long), r'returns \[2, 9, 9\]'),
        (torch.ones(2), torch.ones(2, dtype=torch.long), r'returns \[2\]'),
        (torch.ones(2, 3), torch.ones(2, dtype=torch.long), '100 % of 3 classes: set k below 3'),
        (torch.ones(2, 5), torch.ones(2, dtype=torch.long), '100 % of 5 classes: set k below 5'),
    ],
)
def test_a_meter_that_cannot_apply_is_refused(outputs, targets, message):
    """failures row 5"""
    with pytest.raises(MeterError, match=message):
        TopK(5).update(outputs, targets)
