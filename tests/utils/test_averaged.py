"""The mean of several states of a model."""

from __future__ import annotations

import torch

from utils.averaged import Mean


def test_the_mean_is_computed_in_float64_and_kept_in_its_type():
    states = [
        {'w': torch.tensor([1.0, 2.0**24]), 'half': torch.tensor([60000.0]).half(), 'n': 3},
        {'w': torch.tensor([2.0, 1.0]), 'half': torch.tensor([60000.0]).half(), 'n': 5},
        {'w': torch.tensor([6.0, 1.0]), 'half': torch.tensor([30000.0]).half(), 'n': 9},
    ]
    mean = Mean()
    for state in states:
        mean.add({**state, 'n': torch.tensor(state['n'])})
    found = mean.state_dict()
    assert list(found) == ['w', 'half', 'n']
    assert found['w'].tolist() == [3.0, torch.tensor((2.0**24 + 2) / 3).item()]
    assert found['half'].dtype == torch.float16 and found['half'].item() == 49984.0
    assert found['n'].item() == 3  # a count is no weight
    assert states[0]['w'].tolist() == [1.0, 2.0**24]


def test_complex_weights_are_averaged_too():
    mean = Mean()
    mean.add({'w': torch.tensor([1 + 2j])})
    mean.add({'w': torch.tensor([3 - 2j])})
    assert mean.state_dict()['w'].tolist() == [2 + 0j]
