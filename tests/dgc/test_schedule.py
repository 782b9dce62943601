import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.schedule import DensitySchedule, density_of


def by_epoch(
    schedule: DensitySchedule, epochs: int, steps_per_epoch: int = 7
) -> list[float | None]:
    """The density of each epoch, which its first and its last step must share."""
    first = [schedule.at(epoch * steps_per_epoch, steps_per_epoch) for epoch in range(epochs)]
    last = [schedule.at((e + 1) * steps_per_epoch - 1, steps_per_epoch) for e in range(epochs)]
    assert first == last
    return first


def test_wm5_is_the_published_schedule_to_the_step_and_then_constant():
    densities = by_epoch(DensitySchedule(0.001, warmup_epochs=5), 300)
    assert [float(f'{each:.2g}') for each in densities[:5]] == [
        0.32,
        0.1,
        0.032,
        0.01,
        0.0032,
    ]
    assert densities[:5] == pytest.approx([0.001 ** (e / 6) for e in range(1, 6)])
    assert densities[5:] == [0.001] * 295


def test_a_coefficient_gives_its_powers_but_never_less_than_the_density():
    assert by_epoch(DensitySchedule(0.001, 5, 0.25), 6) == pytest.approx(
        [0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001]
    )


def test_a_list_gives_each_stage_its_density():
    schedule = DensitySchedule(0.001, 3, [0.25, 0.063, 0.015])
    assert by_epoch(schedule, 5) == [0.25, 0.063, 0.015, 0.001, 0.001]


def test_a_list_may_end_uncompressed():
    assert by_epoch(DensitySchedule(None, 2, (0.01, 0.02)), 4) == [0.01, 0.02, None, None]


def test_at_density_1_all_elements_are_compressed():
    schedule = DensitySchedule(1.0)
    assert by_epoch(schedule, 2) == [1.0, 1.0]
    assert not schedule.is_uncompressed


def test_none_is_uncompressed_from_the_first_step():
    assert by_epoch(DensitySchedule(), 2) == [None, None]
    assert DensitySchedule().is_uncompressed and DensitySchedule(None).is_uncompressed
    assert not DensitySchedule(None, 1, [0.1]).is_uncompressed
    assert not DensitySchedule(0.1).is_uncompressed


@pytest.mark.parametrize(
    ('schedule', 'always'),
    [
        (DensitySchedule(None, 2, [1.0, 2]), True),
        (DensitySchedule(None, 2, [1.0, 1.0, 0.1]), True),  # a stage more than there are
        (DensitySchedule(None, 2, [1.0, 0.1]), False),
        (DensitySchedule(0.1, 2, [1.0, 0.1]).towards(None), True),
    ],
)
def test_stages_without_compression_are_uncompressed(schedule, always):
    assert schedule.is_uncompressed == always == (set(by_epoch(schedule, 5)) == {None})


@pytest.mark.parametrize('coeff', [1.0, 2, [1.0, 3.0]])
def test_a_warm_up_of_1_or_more_is_uncompressed(coeff):
    assert by_epoch(DensitySchedule(0.1, 2, coeff), 4) == [None, None, 0.1, 0.1]
    assert by_epoch(DensitySchedule(0.1, 3, [1.0, 0.5, 1]), 4) == [None, 0.5, None, 0.1]


def test_a_coefficient_on_the_way_to_uncompressed_has_no_effect():
    assert by_epoch(DensitySchedule(None, 2, 0.25), 3) == [None] * 3


class TestTowards:
    def test_another_final_density_keeps_the_warm_up(self):
        schedule = DensitySchedule(0.01, 2, 0.5, stage_steps=3)
        assert schedule.towards(0.1) == DensitySchedule(0.1, 2, 0.5, stage_steps=3)
        assert schedule.towards(0.01) is schedule

    def test_no_stage_of_a_list_goes_below_the_new_density(self):
        schedule = DensitySchedule(0.001, 3, [0.25, 0.063, 0.015])
        assert by_epoch(schedule.towards(0.05), 4) == [0.25, 0.063, 0.05, 0.05]
        assert by_epoch(schedule.towards(None), 4) == [None] * 4


@pytest.mark.parametrize(
    ('compress_ratio', 'density'),
    [(0.001, 0.001), (1000, 0.001), (0.999, 0.999), (1, None), (1.0, None), (2, 0.5)],
)
def test_the_published_ratio_is_a_density_or_its_inverse(compress_ratio, density):
    assert density_of(compress_ratio) == density


@pytest.mark.parametrize(
    ('stage_steps', 'epoch'), [(2.5, 100), (None, 2.5)], ids=['stages', 'epochs']
)
def test_a_stage_may_end_within_a_step(stage_steps, epoch):
    """As of an epoch with a part of a step, by division."""
    schedule = DensitySchedule(0.001, 3, [0.25, 0.063, 0.015], stage_steps=stage_steps)
    found = [schedule.at(step, epoch) for step in range(9)]
    assert found == [0.25] * 3 + [0.063] * 2 + [0.015] * 3 + [0.001]


def test_stages_may_be_counted_in_steps_whatever_an_epoch_is():
    schedule = DensitySchedule(0.01, 2, [0.5, 0.1], stage_steps=3)
    for steps_per_epoch in (1, 1000):
        densities = [schedule.at(step, steps_per_epoch) for step in range(8)]
        assert densities == [0.5] * 3 + [0.1] * 3 + [0.01] * 2


class TestSteps:
    @settings(deadline=None)
    @given(st.floats(1e-4, 0.999), st.integers(1, 300), st.integers(1, 1000))
    def test_the_density_falls_at_every_step_by_the_same_factor(self, density, steps, epoch):
        schedule = DensitySchedule(density, warmup_steps=steps)
        falling = [1.0, *(schedule.at(step, epoch) or 1.0 for step in range(steps + 1))]
        ratios = [later / now for now, later in itertools.pairwise(falling)]
        assert ratios == pytest.approx([density ** (1 / (steps + 1))] * (steps + 1))
        assert schedule.at(steps, epoch) == schedule.at(10 * steps, epoch) == density

    def test_they_are_published_stages_of_one_step_to_the_bit(self):
        by_step = DensitySchedule(0.01, warmup_steps=50)
        by_stage = DensitySchedule(0.01, warmup_epochs=50, stage_steps=1)
        assert all(by_step.at(step, 7) == by_stage.at(step, 7) for step in range(60))

    def test_another_final_density_keeps_them(self):
        schedule = DensitySchedule(0.01, warmup_steps=9)
        assert schedule.towards(0.1) == DensitySchedule(0.1, warmup_steps=9)
        assert schedule.towards(None).at(3, 1) is None

    def test_two_warm_ups_are_refused(self):
        message = '^warmup_steps=9 and warmup_epochs=5 are two warm-ups: set one of them to 0$'
        with pytest.raises(ValueError, match=message):
            DensitySchedule(0.01, warmup_epochs=5, warmup_steps=9)

    @pytest.mark.parametrize('steps', [0, 9])
    @pytest.mark.parametrize(
        ('stages', 'named'),
        [
            ({'stage_steps': 3}, 'warmup_stage_steps=3'),
            ({'warmup_coeff': 0.5}, 'warmup_coeff=0.5'),
            ({'warmup_coeff': [0.5]}, r'warmup_coeff=\(0.5,\)'),
        ],
    )
    def test_settings_of_stages_are_refused_where_there_are_none(self, stages, named, steps):
        message = f'^{named} is for the stages of a warm-up, and warmup_epochs is 0: set it to'
        with pytest.raises(ValueError, match=message):
            DensitySchedule(0.01, warmup_steps=steps, **stages)
        DensitySchedule(0.01, warmup_epochs=1, **stages)

    @pytest.mark.parametrize('steps', [-1, 2.5, float('nan'), float('inf')])
    def test_no_number_of_steps_is_refused(self, steps):
        with pytest.raises(ValueError, match='warmup_steps must be a whole number, 0'):
            DensitySchedule(0.01, warmup_steps=steps)


def test_without_a_warm_up_the_density_holds_from_the_first_step():
    assert by_epoch(DensitySchedule(0.02), 3) == [0.02] * 3


@settings(deadline=None)
@given(st.floats(1e-4, 1), st.integers(0, 8), st.integers(1, 50), st.integers(0, 1000))
def test_the_default_warm_up_falls_to_the_density_and_never_below(density, epochs, length, step):
    schedule = DensitySchedule(density, epochs)
    now, later = schedule.at(step, length) or 1.0, schedule.at(step + 1, length) or 1.0
    assert density <= later <= now <= 1
    assert (now == density) == (step >= epochs * length or density == 1)


@pytest.mark.parametrize(
    ('settings', 'complaint'),
    [
        ({'density': 0.0}, 'must be above 0'),
        ({'density': -0.1}, 'must be above 0'),
        ({'density': float('nan')}, 'must be above 0'),
        ({'density': 0.1, 'warmup_epochs': 2, 'warmup_coeff': -0.5}, 'must be above 0'),
        ({'density': 0.1, 'warmup_epochs': 2, 'warmup_coeff': 0}, 'must be above 0'),
        ({'density': 0.1, 'warmup_epochs': 2, 'warmup_coeff': [0.5, 0.0]}, 'must be above 0'),
        ({'density': 0.1, 'warmup_epochs': 3, 'warmup_coeff': [0.5, 0.2]}, '2 ratios for .* = 3'),
        ({'density': 0.1, 'stage_steps': 0}, 'stage_steps must be at least 1'),
        ({'density': 0.1, 'warmup_epochs': -1}, 'warmup_epochs must be at least 0, got -1'),
        ({'density': 1.5}, r'a density is at most 1, got 1\.5'),
        ({'density': 1000}, r'a density is at most 1, got 1000; see density_of\(\)'),
        ({'density': float('inf')}, 'a density is at most 1'),
    ],
    ids=str,
)
def test_what_makes_no_schedule_is_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        DensitySchedule(**settings)
