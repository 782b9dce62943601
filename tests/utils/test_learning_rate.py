"""The learning rate over time: the published warm-up, then one of torch's schedulers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR

from utils.learning_rate import LearningRate, warmup_factor

STEPS = 10  # an epoch
FULL = 0.8


def optimizer(lr: float = FULL) -> torch.optim.SGD:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    return torch.optim.SGD(
        [{'params': parameters[:1]}, {'params': parameters[1:], 'lr': lr / 2}], lr
    )


def rate_of(scheduler=None, warmup: int = 0, workers: int = 4, per_epoch: bool = True, **options):
    """A LearningRate over a fresh optimizer."""
    sgd = optimizer()
    built = None if scheduler is None else scheduler(sgd, **options)
    return LearningRate(sgd, built, warmup, STEPS, workers, per_epoch)


def rates(rate: LearningRate, steps: range) -> list[float]:
    """The rate of each step of the first group."""
    found = []
    for step in steps:
        rate.before_step(step)
        rate.optimizer.step()
        found.append(rate.current)
    return found


@pytest.mark.parametrize('workers', [1, 2, 8, 256])
@pytest.mark.parametrize('warmup', [1, 5])
def test_the_published_warm_up(workers, warmup):
    """adjust = 1 / size * (epoch * (size - 1) / warmup_epochs + 1), epoch a fraction."""
    for step in range(warmup * STEPS):
        epoch = step / STEPS
        expected = 1 / workers * (epoch * (workers - 1) / warmup + 1)
        assert warmup_factor(epoch, warmup, workers) == pytest.approx(expected)
    assert warmup_factor(0, warmup, workers) == 1 / workers
    assert warmup_factor(warmup, warmup, workers) == 1
    assert warmup_factor(10 * warmup, warmup, workers) == 1


def test_no_warm_up_is_the_full_rate_from_the_first_step():
    assert rates(rate_of(), range(3)) == [FULL] * 3


def test_the_warm_up_starts_at_one_workers_rate_and_every_group_follows():
    rate = rate_of(warmup=2, workers=4)
    found = rates(rate, range(2 * STEPS + 2))
    assert found[0] == pytest.approx(FULL / 4)
    assert found[STEPS] == pytest.approx(FULL * (1 / 4 + 1) / 2)
    assert found[2 * STEPS :] == [FULL, FULL]
    assert found[: 2 * STEPS] == sorted(set(found[: 2 * STEPS]))
    groups = rate.optimizer.param_groups
    rate.before_step(3)
    assert groups[1]['lr'] == pytest.approx(groups[0]['lr'] / 2)


def test_cosine_per_epoch_begins_after_the_warm_up():
    rate = rate_of(CosineAnnealingLR, warmup=2, T_max=4)
    found = rates(rate, range(6 * STEPS))
    for epoch in range(2, 6):
        expected = FULL * (1 + math.cos(math.pi * (epoch - 2) / 4)) / 2
        assert found[epoch * STEPS : (epoch + 1) * STEPS] == pytest.approx([expected] * STEPS)


def test_cosine_per_step_falls_at_each_step():
    rate = rate_of(CosineAnnealingLR, warmup=1, per_epoch=False, T_max=4 * STEPS)
    found = rates(rate, range(5 * STEPS))
    for step in range(STEPS, 5 * STEPS):
        expected = FULL * (1 + math.cos(math.pi * (step - STEPS) / (4 * STEPS))) / 2
        assert found[step] == pytest.approx(expected)


@pytest.mark.parametrize('warmup', [0, 1])
def test_milestones_count_from_the_end_of_the_warm_up(warmup):
    rate = rate_of(MultiStepLR, warmup=warmup, milestones=[1, 3], gamma=0.1)
    found = rates(rate, range((warmup + 4) * STEPS))[warmup * STEPS :]
    by_epoch = [FULL, FULL / 10, FULL / 10, FULL / 100]
    assert found == pytest.approx([lr for lr in by_epoch for _ in range(STEPS)])


def test_milestones_may_count_steps():
    rate = rate_of(MultiStepLR, per_epoch=False, milestones=[3, 5], gamma=0.1)
    found = rates(rate, range(7))
    assert found == pytest.approx([FULL] * 3 + [FULL / 10] * 2 + [FULL / 100] * 2)


SCHEDULERS = {
    'none': (None, {}),
    'cosine': (CosineAnnealingLR, {'T_max': 4}),
    'steps': (MultiStepLR, {'milestones': [1, 2], 'gamma': 0.1}),
}


@pytest.mark.parametrize('name', SCHEDULERS)
@pytest.mark.parametrize('per_epoch', [True, False])
@pytest.mark.parametrize('epochs', [1, 2, 3])
def test_resuming_continues_to_the_bit(name, per_epoch, epochs):
    scheduler, options = SCHEDULERS[name]
    options = {k: v if per_epoch or k == 'gamma' else 10 if k == 'T_max' else [5, 15]
               for k, v in options.items()}  # fmt: skip
    straight = rates(rate_of(scheduler, 2, 4, per_epoch, **options), range(6 * STEPS))
    first = rate_of(scheduler, 2, 4, per_epoch, **options)
    rates(first, range(epochs * STEPS))
    second = rate_of(scheduler, 2, 4, per_epoch, **options)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.resume(epochs * STEPS)
    assert rates(second, range(epochs * STEPS, 6 * STEPS)) == straight[epochs * STEPS :]


def test_resuming_follows_what_is_configured_now_not_then():
    """A longer cosine, and the rate of another number of workers."""
    first = rate_of(CosineAnnealingLR, warmup=1, T_max=1)
    rates(first, range(2 * STEPS))
    sgd = optimizer(FULL / 2)
    second = LearningRate(sgd, CosineAnnealingLR(sgd, T_max=4), 1, STEPS, workers=2)
    sgd.load_state_dict(first.optimizer.state_dict())
    second.resume(2 * STEPS)
    found = rates(second, range(2 * STEPS, 5 * STEPS))
    for epoch in (2, 3, 4):
        expected = FULL / 2 * (1 + math.cos(math.pi * (epoch - 1) / 4)) / 2
        assert found[(epoch - 2) * STEPS] == pytest.approx(expected)


def test_resuming_says_nothing(recwarn):
    rate_of(CosineAnnealingLR, warmup=1, T_max=4).resume(4 * STEPS)
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize(
    ('scheduler', 'options'),
    [
        (None, {}),
        (CosineAnnealingLR, {'T_max': 4, 'eta_min': 0.1}),
        (MultiStepLR, {'milestones': [1, 3]}),
        (torch.optim.lr_scheduler.ExponentialLR, {'gamma': 0.9}),
    ],
)
def test_a_factor_multiplies_every_rate_and_changes_no_schedule(scheduler, options):
    plain, lowered = (rate_of(scheduler, warmup=2, **options) for _ in range(2))
    lowered.factor = 0.25
    lowered.resume(7)
    expected = rates(plain, range(6 * STEPS))
    assert rates(lowered, range(7, 6 * STEPS)) == [rate / 4 for rate in expected[7:]]
