"""The norm of weights, and when they have exploded."""

from __future__ import annotations

import math

import pytest
import torch

from utils.norms import exploded, norm


def test_the_norm_is_that_of_the_named_tensors_together():
    model = {
        'weight': torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float16),
        'phase': torch.tensor([12j]),
        'running_var': torch.tensor([1e30]),
    }
    assert norm(model, ['weight', 'phase']) == 13.0
    assert norm({'large': torch.full((4,), 3e38)}, ['large']) == pytest.approx(6e38)
    assert math.isnan(norm({'bad': torch.tensor([math.nan])}, ['bad']))
    assert norm({'bad': torch.tensor([math.inf])}, ['bad']) == math.inf


@pytest.mark.parametrize(
    ('value', 'before', 'most_growth', 'expected'),
    [
        (10.0, 1.0, 10.0, False),
        (10.1, 1.0, 10.0, True),
        (10.1, 1.0, None, False),
        (1e9, None, 10.0, False),  # nothing to compare with
        (1.0, 0.0, 10.0, False),  # a model of zeros has begun to learn
        (math.nan, 1.0, None, True),
        (math.inf, None, 10.0, True),
    ],
)
def test_growth_is_compared_with_the_last_good_checkpoint(value, before, most_growth, expected):
    assert exploded(value, before, most_growth) == expected
