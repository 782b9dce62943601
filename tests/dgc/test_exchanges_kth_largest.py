"""The k-th largest of all ranks' numbers, against sorting them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dgc
from dgc.exchanges.kth_largest import kth_largest

NAN, INF = float('nan'), float('inf')
SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-45, -3e-39, 1.1754944e-38, 3.4028235e38, INF, -INF, NAN]


def found(parts: list[list[float]], k: int) -> float:
    """The number that all ranks find."""
    tensors = [torch.tensor(part, dtype=torch.float32) for part in parts]
    all_found = dgc.simulate(len(parts), lambda e: kth_largest(tensors[e.rank], k, e))
    assert len({str(value) for value in all_found}) == 1
    return all_found[0]


def sorted_kth(parts: list[list[float]], k: int) -> float:
    """By sorting; torch.sort counts a NaN as the largest."""
    magnitudes = torch.cat([torch.tensor(part, dtype=torch.float32) for part in parts]).abs()
    ordered = magnitudes.sort(descending=True).values
    return float(ordered[k - 1]) if k <= len(ordered) else 0.0


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


numbers = st.one_of(
    st.floats(width=32), st.sampled_from(SPECIAL), st.sampled_from([1.0, 2.0, -2.0])
)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.lists(numbers, max_size=8), min_size=1, max_size=4), st.integers(1, 20))
def test_equals_what_sorting_finds(parts, k):
    assert same(found(parts, k), sorted_kth(parts, k))


@pytest.mark.parametrize('world_size', [1, 3, 8])
def test_of_many_numbers(world_size):
    draw = torch.Generator().manual_seed(world_size)
    parts = [torch.randn(500, generator=draw).tolist() for _ in range(world_size)]
    for k in (1, 2, 17, 400, 500 * world_size):
        assert found(parts, k) == sorted_kth(parts, k)


def test_each_of_equal_numbers_counts():
    parts = [[1.0, 3.0, 3.0], [-3.0], [2.0, 0.5]]
    assert [found(parts, k) for k in range(1, 7)] == [3, 3, 3, 2, 1, 0.5]


def test_is_zero_where_there_are_fewer_than_k():
    assert found([[1.0], [2.0]], 3) == 0
    assert found([[], [], []], 1) == 0
    assert found([[NAN], []], 2) == 0


def test_a_nan_is_larger_than_an_infinity():
    parts = [[1.0, NAN], [-INF, 2.0], [-NAN]]
    assert math.isnan(found(parts, 1))
    assert math.isnan(found(parts, 2))
    assert [found(parts, k) for k in (3, 4, 5)] == [INF, 2, 1]


def test_a_nan_of_any_bits_counts():
    odd = torch.tensor([-1, 0x7F800001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    values = dgc.simulate(1, lambda e: [kth_largest(odd, k, e) for k in (1, 2, 3)])[0]
    assert math.isnan(values[0]) and math.isnan(values[1])
    assert values[2] == 1


@pytest.mark.parametrize('parts', [[[], []], [[1.0], []], [[1.0, 2.0, 3.0], [4.0, 5.0]]])
def test_takes_four_histograms_for_any_data(parts):
    def worker(engine):
        kth_largest(torch.tensor(parts[engine.rank]), 2, engine)
        return engine.traffic.sent

    assert dgc.simulate(2, worker) == [4 * 4 * 256] * 2
