"""Outer settings of a resumed run: a schedule goes on, and what the user has changed counts."""

import copy

import pytest
import torch
from state_helpers import assert_same
from torch.optim.lr_scheduler import ExponentialLR

import dgc
from dgc.outer_settings import OuterSettings

SEEDS = range(8), range(8, 14)  # of the steps before and after a checkpoint


class Loop:
    """A training loop with a schedule for each optimizer."""

    def __init__(self, engine, wrap, lr: float = 0.8):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
        inner = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.outer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9, nesterov=True)
        named = self.model.named_parameters()
        self.optimizer = wrap(inner, self.outer, named, engine=engine, every=4)
        self.schedules = [ExponentialLR(self.outer, 0.5), ExponentialLR(self.optimizer, 0.9)]

    def train(self, seeds):
        for seed in seeds:
            self.optimizer.zero_grad()
            sample = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
            self.model(sample).pow(2).mean().backward()
            self.optimizer.step()
            self.schedules[1].step()
            if seed % 4 == 3:  # after an outer step
                self.schedules[0].step()

    def state(self):
        parts = [self.model, self.optimizer, *self.schedules]
        return [copy.deepcopy(part.state_dict()) for part in parts]

    def resume(self, states):
        parts = [self.model, self.optimizer, *self.schedules]
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        return self


@pytest.mark.parametrize('wrap', [dgc.LocalSteps, dgc.StreamingSteps])
def test_a_scheduled_rate_goes_on(wrap):
    def worker(engine):
        straight = Loop(engine, wrap)
        straight.train(SEEDS[0])
        states = straight.state()
        again = Loop(engine, wrap).resume(states)
        assert again.outer.param_groups[0]['lr'] == straight.outer.param_groups[0]['lr'] < 0.3
        for loop in (straight, again):
            loop.train(SEEDS[1])
        assert_same(again.state(), straight.state())

    dgc.simulate(2, worker)


def sgd(**settings):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], **settings)


@pytest.mark.parametrize(
    ('begun', 'resumed', 'expected'),
    [
        ({'lr': 0.8}, {'lr': 0.8}, {'lr': 0.05}),  # as the schedule left it
        ({'lr': 0.8}, {'lr': 0.4}, {'lr': 0.4}),
        ({'lr': 0.8, 'momentum': 0.9}, {'lr': 0.8, 'momentum': 0.5}, {'lr': 0.05, 'momentum': 0.5}),
    ],
)
def test_a_changed_setting_counts_and_a_scheduled_one_goes_on(begun, resumed, expected):
    first, second = sgd(**begun), sgd(**resumed)
    theirs, ours = OuterSettings(first), OuterSettings(second)
    first.param_groups[0]['lr'] = 0.05
    ours.load_state_dict(first.state_dict(), theirs.state_dict())
    assert {name: second.param_groups[0][name] for name in expected} == expected


def test_of_an_earlier_version_all_settings_are_those_of_this_run():
    first, second = sgd(lr=0.8), sgd(lr=0.8)
    first.param_groups[0]['lr'] = 0.05
    OuterSettings(second).load_state_dict(first.state_dict(), None)
    assert second.param_groups[0]['lr'] == 0.8


def test_a_rate_in_a_tensor_is_not_changed_by_its_schedule():
    optimizer = sgd(lr=torch.tensor(0.8))
    settings = OuterSettings(optimizer)
    optimizer.param_groups[0]['lr'].fill_(0.1)
    assert settings.state_dict()[0]['lr'] == torch.tensor(0.8)
