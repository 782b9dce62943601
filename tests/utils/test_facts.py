"""What run.json says of how a method exchanges."""

from __future__ import annotations

import pytest
import torch

from dgc import LocalSteps, StreamingSteps
from utils.facts import travelling


@pytest.mark.parametrize(
    ('kind', 'settings', 'expected'),
    [
        (LocalSteps, {}, {'fragments': 1, 'steps_hidden': 0}),
        (StreamingSteps, {'fragments': 2, 'delay': 3}, {'fragments': 2, 'steps_hidden': 3}),
    ],
)
def test_fragments_travel_while_steps_go_on(kind, settings, expected):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    inner, outer = torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), 1.0)
    optimizer = kind(inner, outer, model.named_parameters(), every=6, **settings)
    assert travelling(optimizer) == expected
    assert travelling(object()) == {'fragments': 1, 'steps_hidden': 0}
