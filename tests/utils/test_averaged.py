"""The mean of several states of a model, and the average over steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from utils.averaged import AveragedWeights, Mean


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


class Buffered(nn.Module):
    """A layer with a buffer, which may be left out of the model's state."""

    def __init__(self, buffer, persistent=True):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        self.register_buffer('buffer', buffer, persistent)


def averaged_over(model, values, decay=0.9):
    """The average after steps that set the weight to some values."""
    average = AveragedWeights(model, decay)
    for value in values:
        with torch.no_grad():
            model.layer.weight.fill_(value)
        average.update(model)
    return average.model


@pytest.mark.parametrize('persistent', [True, False])
@pytest.mark.parametrize(
    'buffer',
    [
        torch.full((3, 3), -torch.inf).triu(1),  # the mask of a decoder
        torch.tensor([torch.inf, -torch.inf]),  # of an observer, which has seen nothing
        torch.arange(3000),
        torch.tensor([2**40 + 1, 2**60 + 1]),
        torch.tensor([True, False]),
    ],
    ids=['mask', 'infinite', 'indices', 'large', 'bool'],
)
def test_what_has_no_average_over_steps_is_that_of_the_model(buffer, persistent):
    model = Buffered(buffer.clone(), persistent)
    found = averaged_over(model, [1.0, 2.0, 3.0])
    assert torch.equal(found.buffer, buffer)
    assert found.layer.weight.item() == pytest.approx(0.9 * (0.9 + 0.2) + 0.3)


def test_running_statistics_are_averaged_over_steps():
    model = Buffered(torch.zeros(1))
    average = AveragedWeights(model, 0.9)
    for value in (1.0, 2.0):
        model.buffer.fill_(value)
        average.update(model)
    assert average.model.buffer.item() == pytest.approx(1.1)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_averages_of_low_precision_move_as_those_of_float32(dtype):
    """By a thousandth of the difference in a step, which is below half a unit in the last place."""
    torch.manual_seed(0)
    model, reference = (Buffered(torch.zeros(1)) for _ in range(2))
    model.to(dtype)
    average, expected = AveragedWeights(model, 0.999), AveragedWeights(reference, 0.999)
    for number in range(300):
        for each in (model, reference):
            with torch.no_grad():
                each.layer.weight.fill_(1 + number / 128)
                each.buffer.fill_(1 + number / 128)
        average.update(model)
        expected.update(reference)
        if number == 150:  # a run is resumed
            saved = average.state_dict()
            average = AveragedWeights(Buffered(torch.zeros(1)).to(dtype), 0.999)
            average.load_state_dict(saved)
    for name, value in expected.state_dict().items():
        assert value.item() > 1.2
        assert average.state_dict()[name].item() == pytest.approx(value.item(), abs=0.01)
        assert average.model.state_dict()[name].dtype == dtype
        assert average.model.state_dict()[name].item() == pytest.approx(value.item(), rel=2**-8)
