import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.schedule import RatioSchedule


def by_epoch(schedule: RatioSchedule, epochs: int, steps_per_epoch: int = 7) -> list[float]:
    """The ratio of each epoch, which its first and its last step must share."""
    first = [schedule.at(epoch * steps_per_epoch, steps_per_epoch) for epoch in range(epochs)]
    last = [schedule.at((e + 1) * steps_per_epoch - 1, steps_per_epoch) for e in range(epochs)]
    assert first == last
    return first


def test_wm5_is_the_published_schedule_to_the_step_and_then_constant():
    ratios = by_epoch(RatioSchedule(0.001, warmup_epochs=5), 300)
    assert [float(f'{ratio:.2g}') for ratio in ratios[:5]] == [0.32, 0.1, 0.032, 0.01, 0.0032]
    assert ratios[:5] == pytest.approx([0.001 ** (e / 6) for e in range(1, 6)])
    assert ratios[5:] == [0.001] * 295


def test_a_coefficient_gives_its_powers_but_never_less_than_the_ratio():
    assert by_epoch(RatioSchedule(0.001, 5, 0.25), 6) == pytest.approx(
        [0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001]
    )


def test_a_list_gives_each_stage_its_ratio():
    schedule = RatioSchedule(0.001, 3, [0.25, 0.063, 0.015])
    assert by_epoch(schedule, 5) == [0.25, 0.063, 0.015, 0.001, 0.001]


def test_a_list_may_end_dense():
    assert by_epoch(RatioSchedule(1.0, 2, (0.01, 0.02)), 4) == [0.01, 0.02, 1.0, 1.0]


def test_stages_may_be_counted_in_steps_whatever_an_epoch_is():
    schedule = RatioSchedule(0.01, 2, [0.5, 0.1], stage_steps=3)
    for steps_per_epoch in (1, 1000):
        ratios = [schedule.at(step, steps_per_epoch) for step in range(8)]
        assert ratios == [0.5] * 3 + [0.1] * 3 + [0.01] * 2


def test_without_a_warm_up_the_ratio_holds_from_the_first_step():
    assert by_epoch(RatioSchedule(0.02), 3) == [0.02] * 3


@settings(deadline=None)
@given(st.floats(1e-4, 1), st.integers(0, 8), st.integers(1, 50), st.integers(0, 1000))
def test_the_default_warm_up_falls_to_the_ratio_and_never_below(ratio, epochs, length, step):
    schedule = RatioSchedule(ratio, epochs)
    now, later = schedule.at(step, length), schedule.at(step + 1, length)
    assert ratio <= later <= now <= 1
    assert (now == ratio) == (step >= epochs * length or ratio == 1)


@pytest.mark.parametrize(
    ('settings', 'complaint'),
    [
        ({'ratio': 0.0}, 'must be above 0'),
        ({'ratio': -0.1}, 'must be above 0'),
        ({'ratio': float('nan')}, 'must be above 0'),
        ({'ratio': 0.1, 'warmup_epochs': 2, 'warmup_coeff': -0.5}, 'must be above 0'),
        ({'ratio': 0.1, 'warmup_epochs': 2, 'warmup_coeff': 0}, 'must be above 0'),
        ({'ratio': 0.1, 'warmup_epochs': 2, 'warmup_coeff': [0.5, 0.0]}, 'must be above 0'),
        ({'ratio': 0.1, 'warmup_epochs': 3, 'warmup_coeff': [0.5, 0.2]}, '2 ratios for .* = 3'),
        ({'ratio': 0.1, 'stage_steps': 0}, 'stage_steps must be at least 1'),
    ],
    ids=str,
)
def test_what_makes_no_schedule_is_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        RatioSchedule(**settings)
