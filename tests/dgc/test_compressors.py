"""What holds for every compressor, and what each one adds."""

import copy
import json
import math

import pytest
import torch
from dgc_helpers import keep_count
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.compressors import (
    BlockTopK,
    Compressor,
    Dense,
    ExponentialThreshold,
    FixedThreshold,
    GaussianThreshold,
    PeriodicThreshold,
    SampledTopK,
    TopK,
    exponential,
    keep,
)
from dgc.compressors.gaussian import fit
from dgc.compressors.sampled import sample_stride
from dgc.corrected import Corrected
from dgc.state import Resize, Values
from dgc.transforms import BlockLayout

SPARSE = {
    'top-k': TopK,
    'sampled': SampledTopK,
    'uniform': lambda: SampledTopK(strided_sample=False),
    'no resample': lambda: SampledTopK(resample=False),
    'one adaptation': lambda: SampledTopK(max_adaptation_iters=1),
    'large sample': lambda: SampledTopK(sample_ratio=0.25),
    'gaussian': GaussianThreshold,
    'exponential': ExponentialThreshold,
    'periodic': PeriodicThreshold,
}
every = pytest.mark.parametrize('make', SPARSE.values(), ids=SPARSE)
DENSITIES = st.sampled_from([0.001, 0.01, 0.1, 0.25, 0.9, 1.0])


def random(numel: int, seed: int = 0) -> torch.Tensor:
    """Heavy-tailed, as gradients are."""
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed)).pow(3)


@pytest.mark.parametrize(
    ('numel', 'density', 'k'),
    [(1, 0.001, 1), (9, 0.001, 1), (1, 0.25, 1), (9, 0.25, 3), (1000, 0.001, 1), (0, 0.1, 0),
     (1000, 0.0011, 2), (7, 1.0, 7), (7, 3.0, 7)],
)  # fmt: skip
def test_a_density_keeps_at_least_one_and_at_most_all(numel, density, k):
    assert keep(numel, density) == k


@every
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3000), DENSITIES, st.integers(0, 5))
def test_a_message_is_the_largest_elements_as_they_are(make, numel, density, seed):
    corrected = random(numel, seed)
    sparse = make().compress(corrected, density)
    chosen, k = sparse.indices, keep_count(numel, density)
    assert sparse.numel == numel
    assert 1 <= len(chosen) <= k
    assert chosen.dtype == torch.int64
    assert torch.equal(chosen, chosen.unique())  # ascending, none twice
    assert torch.equal(sparse.values, corrected[chosen])
    rest = corrected.abs().index_fill(0, chosen, 0)
    assert sparse.values.abs().min() >= rest.max()


@every
@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([0.0, 1.0, -1.0, 3.0]), min_size=1, max_size=1500), DENSITIES)
def test_ties_keep_at_most_k_the_same_each_time_and_never_nothing(make, elements, density):
    corrected = torch.tensor(elements)
    one, other = (make().compress(corrected, density) for _ in range(2))
    assert torch.equal(one.indices, other.indices)
    assert len(one.indices) <= keep_count(len(elements), density)
    assert len(one.indices) >= 1 or not corrected.any()


@every
@pytest.mark.parametrize('fill', [0.0, 1.0, -2.5])
def test_a_constant_keeps_at_most_k_of_thousand(make, fill):
    """pytorch#27542: a threshold selects all of them."""
    corrected = torch.full((1000,), fill)
    sparse = make().compress(corrected, 0.01)
    assert len(sparse.indices) <= 10
    assert len(sparse.indices) >= 1 or not fill
    assert (sparse.values == fill).all()


@every
@pytest.mark.parametrize('numel', [1, 9])
@pytest.mark.parametrize('density', [0.001, 0.25])
def test_tiny_tensors_keep_what_the_density_says(make, numel, density):
    """pytorch#140396: k = 0, or more than there is."""
    assert len(make().compress(random(numel), density).indices) == keep_count(numel, density)


@every
@pytest.mark.parametrize('numel', [9, 5000])
def test_a_nan_counts_as_the_largest(make, numel):
    corrected = random(numel)
    corrected[numel // 2] = torch.nan
    compressor, state = make(), {}
    for _ in range(3):
        sparse = compressor.select(Corrected(corrected, state=state), 0.1)
        assert numel // 2 in sparse.indices
        assert len(sparse.indices) <= keep_count(numel, 0.1)
    after = compressor.select(Corrected(random(numel), state=state), 0.1)
    assert 1 <= len(after.indices) <= keep_count(numel, 0.1)  # what it remembers is finite


@every
def test_a_sparse_message_shares_no_storage(make):
    corrected = random(500)
    sparse = make().compress(corrected, 0.1)
    before = sparse.values.clone()
    corrected.zero_()
    assert torch.equal(sparse.values, before)


def test_dense_sends_everything_and_shares_storage():
    corrected = random(10)
    sparse = Dense().compress(corrected, 0.001)
    assert sparse.is_dense
    assert sparse.values.data_ptr() == corrected.data_ptr()


REMEMBER = {
    'exponential': Resize.PER_RANK,
    'sampled': Resize.REPLICATED,
    'gaussian': Resize.PER_RANK,
    'periodic': Resize.PER_RANK,
}


@pytest.mark.parametrize('name', [*SPARSE, 'dense', 'block'])
def test_what_a_compressor_remembers_is_declared(name):
    make = SPARSE | {'dense': Dense, 'block': lambda: BlockTopK(1, BlockLayout())}
    compressor, state = make[name](), {}
    sampled = name in ('uniform', 'no resample', 'one adaptation', 'large sample')
    resize = REMEMBER.get('sampled' if sampled else name)
    declared = {} if resize is None else {'search': Values(resize)}
    assert compressor.state_for(BucketSpec.of_shape(5000)) == declared
    for step in range(3):
        compressor.select(Corrected(random(5000, step), state=state), 0.01)
    assert bool(state) == bool(declared)
    assert state == json.loads(json.dumps(state))  # plain values


@pytest.mark.parametrize('name', [*REMEMBER, 'uniform', 'no resample'])
def test_remembered_values_make_a_resumed_run_select_the_same(name):
    def select(compressor, state, steps):
        return [compressor.select(Corrected(random(20_000, n), state=state), 0.01) for n in steps]

    straight, interrupted = {}, {}
    wanted = select(SPARSE[name](), straight, range(6))
    first = select(SPARSE[name](), interrupted, range(3))
    resumed = dict(interrupted)
    for ours, theirs in zip(
        first + select(SPARSE[name](), resumed, range(3, 6)), wanted, strict=True
    ):
        assert torch.equal(ours.indices, theirs.indices)
        assert torch.equal(ours.values, theirs.values)
    assert resumed == straight != {}


def test_a_compressor_keeps_nothing_of_a_bucket_in_itself():
    """Neighbouring buckets do not disturb each other."""
    for name in REMEMBER:
        compressor = SPARSE[name]()
        before = dict(vars(compressor))
        alone, beside, other = {}, {}, {}
        for step in range(3):
            one = SPARSE[name]().select(Corrected(random(5000, step), state=alone), 0.01)
            same = compressor.select(Corrected(random(5000, step), state=beside), 0.01)
            compressor.select(Corrected(random(3000, step) * 100, state=other), 0.1)
            assert torch.equal(one.indices, same.indices)
        assert vars(compressor) == before


@pytest.mark.parametrize('make', [*SPARSE.values(), Dense], ids=[*SPARSE, 'dense'])
def test_the_budget_is_the_largest_selection(make):
    spec = BucketSpec.of([ParameterSpec('w', (30, 50)), ParameterSpec('b', (7,))], None)
    compressor: Compressor = make()
    for density in (0.001, 0.1, 1.0):
        budget = compressor.budget(spec, density)
        assert budget == (1507 if make is Dense else keep_count(1507, density))
        corrected = Corrected(random(1507), spec=spec)
        assert 1 <= len(compressor.select(corrected, density).values) <= budget


def test_top_k_is_exact():
    corrected = torch.tensor([1.0, -5.0, 3.0, -4.0, 0.0])
    assert sorted(TopK().compress(corrected, 0.5).indices.tolist()) == [1, 2, 3]


class Counted(Corrected):
    """Counts the passes over memory."""

    passes = 0

    def search(self, threshold, limit):
        self.passes += 1
        return super().search(threshold, limit)


class TestSampledTopK:
    def test_one_pass_is_nearly_always_enough(self):
        compressor = SampledTopK()
        draws = [Counted(random(1_000_000, seed)) for seed in range(30)]
        chosen = [len(compressor.select(draw, 0.001).values) for draw in draws]
        assert sum(draw.passes for draw in draws) <= 1.1 * len(draws)
        assert sum(chosen) >= 0.99 * 1000 * len(draws)

    @pytest.mark.parametrize('strided', [True, False])
    def test_it_keeps_about_k(self, strided):
        compressor = SampledTopK(strided_sample=strided)
        counts = [len(compressor.compress(random(100_000, i), 0.01).indices) for i in range(10)]
        assert all(800 <= count <= 1000 for count in counts)

    def test_an_overfull_selection_is_trimmed_by_magnitude(self):
        """Stride 11 finds none of the large elements, so that the threshold is too low; the
        published release would keep the first of those above it, and starve the end."""
        corrected = torch.arange(1.0, 2001.0)
        for _ in range(5):
            sparse = SampledTopK(compress_upper_bound=1.0001).compress(corrected, 0.05)
            count = len(sparse.indices)
            assert sorted(sparse.indices.tolist()) == list(range(2000 - count, 2000))

    def test_the_sample_starts_elsewhere_at_each_call(self):
        """At the same calls, the same start: their number is remembered."""
        corrected = random(5000)

        def make(seed=1):  # without a trim, which would undo the difference
            return SampledTopK(seed=seed, resample=False)

        def choices(compressor, state, number):
            return [
                compressor.select(Corrected(corrected, state=state), 0.02).indices.tolist()
                for _ in range(number)
            ]

        straight = choices(make(), {}, 6)
        assert any(one != straight[0] for one in straight)
        assert straight != choices(make(seed=2), {}, 6)
        state = {}
        first = choices(make(), state, 3)
        assert state == {'calls': 3}
        assert first + choices(make(), state, 3) == straight

    def test_it_leaves_the_global_random_numbers_alone(self):
        before = torch.get_rng_state()
        SampledTopK(strided_sample=False).compress(random(5000), 0.02)
        assert torch.equal(torch.get_rng_state(), before)

    def test_too_few_lower_the_threshold(self):
        """Zeros and one large element in the sample: most of the wanted lie far below it."""
        corrected = torch.ones(20_000)
        corrected[torch.arange(0, 20_000, 3)] = 4.0
        corrected[5] = 1000.0
        for max_iterations in (0, 60):
            compressor = SampledTopK(max_adaptation_iters=max_iterations)
            assert 1 <= len(compressor.compress(corrected, 0.01).indices) <= 200
        assert len(SampledTopK(max_adaptation_iters=60).compress(corrected, 0.01).indices) >= 160

    @pytest.mark.parametrize(
        ('lower', 'upper'), [(0.0, 1.3), (1.0, 1.3), (0.8, 1.0), (1.2, 1.3), (-1, 2)]
    )
    def test_bounds_that_bound_nothing_are_refused(self, lower, upper):
        with pytest.raises(ValueError, match='compress_lower_bound'):
            SampledTopK(compress_lower_bound=lower, compress_upper_bound=upper)

    @settings(deadline=None)
    @given(st.integers(0, 10**9), st.integers(1, 10**7))
    def test_the_stride_takes_enough_and_is_odd_to_powers_of_two(self, numel, samples):
        stride = sample_stride(numel, samples)
        assert stride == 1 or numel // stride >= samples
        assert stride % 2 == 1
        assert stride < 33 or stride % 32 == 1
        assert stride == 1 or math.gcd(stride, 1 << 20) == 1


class Watched(Corrected):
    """Notes the thresholds searched for, and how often all of it was looked at."""

    def __init__(self, values: torch.Tensor, state: dict | None = None) -> None:
        super().__init__(values, state=state)
        self.thresholds: list[float] = []
        self.materialized = 0

    def search(self, threshold, limit):
        self.thresholds.append(threshold)
        return super().search(threshold, limit)

    def materialize(self):
        self.materialized += 1
        return super().materialize()


def normal(numel: int, seed: int = 0) -> torch.Tensor:
    """Standard normal."""
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


class TestGaussianThreshold:
    @pytest.mark.parametrize('density', [0.1, 0.01, 0.002])
    @pytest.mark.parametrize('scale', [1.0, 1e-12])
    def test_the_fit_is_right_for_a_normal_distribution(self, density, scale):
        values = normal(2_000_000) * scale
        count = int((values.abs() >= fit(values, density)).sum())
        assert count == pytest.approx(2_000_000 * density, rel=0.05)

    @pytest.mark.parametrize('mean', [0.2, -1.0, 5.0, -300.0])
    def test_with_a_mean_it_finds_between_half_of_them_and_all(self, mean):
        values = normal(1_000_000) + mean
        count = int((values.abs() >= fit(values, 0.01)).sum())
        assert 0.95 * 5000 <= count <= 1.05 * 10_000

    def test_a_tiny_share_lies_far_out_and_not_at_infinity(self):
        values = normal(100_000)
        assert fit(values, 1e-9) == pytest.approx(6.109, rel=0.01)
        assert fit(values, 1e-18) == pytest.approx(8.832, rel=0.01)

    @pytest.mark.parametrize('power', [1, 3, 7])
    @pytest.mark.parametrize('density', [0.05, 0.001])
    def test_it_keeps_two_thirds_to_all_and_remembers_the_factor(self, power, density):
        compressor, k, state = GaussianThreshold(), keep(200_000, density), {}
        searches = []
        for step in range(4):
            corrected = Watched(normal(200_000, step).pow(power), state)
            count = len(compressor.select(corrected, density).indices)
            assert 2 / 3 * k <= count <= k
            searches.append(len(corrected.thresholds))
        assert searches[1:] == [1, 1, 1]
        assert searches[0] > 1 or power == 1 or density == 0.05

    def test_light_tails_lower_the_threshold(self):
        values = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
        compressor, state = GaussianThreshold(), {}
        first, second = Watched(values, state), Watched(values, state)
        assert 67 <= len(compressor.select(first, 0.001).indices) <= 100
        assert first.thresholds[1] == first.thresholds[0] * 0.9
        assert 67 <= len(compressor.select(second, 0.001).indices) <= 100
        assert len(second.thresholds) == 1

    def test_where_few_are_not_zero_it_looks_once_and_comes_back(self):
        few = torch.zeros(100_000)
        few[::5000] = random(20)
        compressor, state, searches = GaussianThreshold(), {}, []
        for values in (few, few, few, normal(100_000), normal(100_000)):
            corrected = Watched(values, state)
            sparse = compressor.select(corrected, 0.001)
            assert torch.equal(
                sparse.values[sparse.values != 0], values[sparse.indices][sparse.values != 0]
            )
            assert int((sparse.values != 0).sum()) == (20 if values is few else len(sparse.values))
            assert 67 <= len(sparse.values) <= 100 or values is few
            searches.append(len(corrected.thresholds))
        assert searches[1:3] == [1, 1]
        assert searches[4] == 1

    def test_factors_are_kept_for_each_bucket_and_resumed_to_the_bit(self):
        def choices(compressor, states, steps):
            return [
                compressor.select(
                    Corrected(random(20_000, 10 * step + power).pow(power), state=state), 0.01
                )
                for step in steps
                for power, state in zip((1, 3), states, strict=True)
            ]

        straight, interrupted = [{}, {}], [{}, {}]
        wanted = choices(GaussianThreshold(), straight, range(6))
        first = choices(GaussianThreshold(), interrupted, range(3))
        resumed = copy.deepcopy(interrupted)
        later = choices(GaussianThreshold(), resumed, range(3, 6))
        for ours, theirs in zip(first + later, wanted, strict=True):
            assert torch.equal(ours.indices, theirs.indices)
            assert torch.equal(ours.values, theirs.values)
        assert resumed == straight
        one, other = straight
        assert one.keys() == other.keys() == {'factor'}
        assert other['factor'] < 1 < one['factor']

    @pytest.mark.parametrize('scale', [torch.inf, 1e30])
    def test_what_cannot_be_squared_is_selected_exactly_and_changes_no_factor(self, scale):
        state = {}
        sparse = GaussianThreshold().select(Corrected(random(5000) * scale, state=state), 0.01)
        assert len(sparse.indices) == 50
        assert state == {}


def fitted_plainly(values: torch.Tensor, density: float, stages: int) -> float:
    """SIDCo's threshold from its formulas, one number at a time."""
    threshold, rest = 0.0, [abs(x) for x in values.tolist()]
    fractions = [0.25] * (stages - 1)
    for fraction in [*fractions, density / math.prod(fractions)]:
        rest = [x for x in rest if x > threshold] if threshold else rest
        excess = sum(x - threshold for x in rest) / len(rest)
        threshold += excess * math.log(1 / fraction)
    return threshold


def laplace(numel: int, seed: int = 0) -> torch.Tensor:
    """Numbers of exponentially distributed magnitudes, of both signs."""
    draw = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, (numel,), generator=draw) * 2 - 1
    return torch.empty(numel).exponential_(generator=draw) * signs


class TestExponentialThreshold:
    @pytest.mark.parametrize('stages', [1, 2, 3, 5])
    @pytest.mark.parametrize('power', [0.5, 1, 3])
    def test_the_fit_is_that_of_the_formulas(self, stages, power):
        values = normal(3000).abs().pow(power)
        plain = fitted_plainly(values, 0.001, stages)
        assert exponential.fit(values.abs(), 0.001, stages) == pytest.approx(plain, rel=1e-5)

    @pytest.mark.parametrize('stages', [1, 2, 4])
    def test_exponential_magnitudes_are_fitted_by_any_number_of_stages(self, stages):
        magnitudes = laplace(1_000_000).abs()
        threshold = exponential.fit(magnitudes, 0.002, stages)
        assert int((magnitudes >= threshold).sum()) == pytest.approx(2000, rel=0.15)

    @pytest.mark.parametrize(('density', 'most'), [(0.5, 1), (0.25, 1), (0.2, 2), (0.001, 5)])
    def test_the_last_stage_always_has_a_fraction_below_one(self, density, most):
        assert exponential.most_stages(density) == most
        assert density / 0.25 ** (most - 1) < 1

    @pytest.mark.parametrize(('power', 'stages'), [(1, 2), (3, 3)])
    def test_stages_are_added_while_that_brings_the_count_closer(self, power, stages):
        """Heavy tails and light ones are both off with one stage, in opposite directions."""
        compressor, state, counts = ExponentialThreshold(), {}, []
        for step in range(40):
            values = Watched(normal(50_000, step).pow(power), state)
            counts.append(len(compressor.select(values, 0.004).indices))
        assert state['stages'] >= stages
        assert min(counts) >= 100 and max(counts) <= 200
        magnitudes = normal(50_000, 99).pow(power).abs()
        one, many = (
            int((magnitudes >= exponential.fit(magnitudes, 0.004, number)).sum())
            for number in (1, state['stages'])
        )
        assert abs(many - 200) < abs(one - 200)

    def test_a_step_that_makes_it_worse_is_turned_back(self):
        state = {}
        for count in [2.0] * 5 + [3.0] * 5 + [1.1] * 5:
            before = state.get('stages', 1)
            exponential.note(state, count, before, most=5)
        assert (state['stages'], state['direction']) == (1, -1)
        for _ in range(5):
            exponential.note(state, 2.0, 1, most=5)
        assert state['stages'] == 2  # there is no stage below the first

    def test_it_is_resumed_to_the_bit(self):
        def choices(state, steps):
            compressor = ExponentialThreshold()
            return [
                compressor.select(Corrected(normal(20_000, step).pow(3), state=state), 0.01)
                for step in steps
            ]

        straight, state = {}, {}
        wanted = choices(straight, range(14))
        first = choices(state, range(7))
        resumed = copy.deepcopy(state)
        for ours, theirs in zip(first + choices(resumed, range(7, 14)), wanted, strict=True):
            assert torch.equal(ours.indices, theirs.indices)
        assert resumed == straight

    @pytest.mark.parametrize('values', [torch.zeros(5000), random(5000) * torch.inf])
    def test_what_has_no_tail_is_selected_exactly(self, values):
        sparse = ExponentialThreshold().select(Corrected(values, state={}), 0.01)
        assert len(sparse.indices) <= 50


class TestFixedThreshold:
    def test_it_selects_what_reaches_the_threshold_and_nothing_else(self):
        values = torch.tensor([0.5, -0.6, 0.4, 0.0, 2.0])
        sparse = FixedThreshold(0.5).compress(values, 1.0)
        assert sparse.indices.tolist() == [0, 1, 4]
        assert not len(FixedThreshold(3.0).compress(values, 1.0).indices)

    @pytest.mark.parametrize('numel', [10_000, 100_000])
    def test_of_more_than_its_budget_it_selects_the_largest(self, numel):
        values = random(numel)
        sparse = FixedThreshold(1e-6).compress(values, 0.01)
        exact = TopK().compress(values, 0.01)
        assert torch.equal(sparse.indices, exact.indices)

    @pytest.mark.parametrize('threshold', [0.0, -1.0, math.inf, math.nan])
    def test_a_threshold_that_is_none_is_refused(self, threshold):
        with pytest.raises(ValueError, match='threshold must be above 0'):
            FixedThreshold(threshold)


class TestPeriodicThreshold:
    def test_it_is_exact_once_in_a_period_and_looks_once_between(self):
        compressor, state = PeriodicThreshold(period=4), {}
        exact_calls = []
        for call in range(12):
            corrected = Watched(random(10_000, call), state)
            sparse = compressor.select(corrected, 0.01)
            exact_calls.append(corrected.materialized)
            assert len(corrected.thresholds) == 1 - corrected.materialized
            count = len(sparse.indices)
            assert 50 <= count <= 100
            assert count == 100 or not corrected.materialized
            exact = TopK().compress(random(10_000, call), count / 10_000)
            assert torch.equal(sparse.indices, exact.indices)
        assert exact_calls == [1, 0, 0, 0] * 3

    @pytest.mark.parametrize(
        ('more', 'moved'), [(0, 1.0), (25, 1.0), (26, 1.012), (-33, 1.0), (-34, 0.992)]
    )
    def test_a_threshold_moves_a_little_where_the_count_is_off(self, more, moved):
        """Magnitudes of 1000 to 1999, and then so many more that reach the threshold of 1900."""
        values = 1000.0 + torch.arange(1000)
        compressor, state = PeriodicThreshold(), {}
        first, second, third = (Watched(values + added, state) for added in (0, more, more))
        compressor.select(first, 0.1)
        assert len(compressor.select(second, 0.1).indices) == min(100 + more, 100)
        compressor.select(third, 0.1)
        assert second.thresholds == [1900]
        assert third.thresholds == [1900 * moved]

    @pytest.mark.parametrize('scale', [0.01, 100.0])
    def test_a_threshold_that_finds_nothing_or_far_too_much_is_computed_anew(self, scale):
        compressor, state = PeriodicThreshold(period=3), {}
        compressor.select(Corrected(random(10_000), state=state), 0.01)
        exact_calls = []
        for _ in range(4):
            corrected = Watched(random(10_000) * scale, state)
            sparse = compressor.select(corrected, 0.01)
            assert torch.equal(sparse.indices, TopK().compress(random(10_000), 0.01).indices)
            exact_calls.append(corrected.materialized)
        assert exact_calls == [1, 0, 0, 1]

    def test_another_density_and_another_bucket_have_thresholds_of_their_own(self):
        compressor = PeriodicThreshold()
        one, other = {}, {}
        exact_calls = []
        for state, density in [(one, 0.01), (other, 0.01), (one, 0.01), (one, 0.1), (other, 0.01)]:
            corrected = Watched(random(1000), state)
            assert len(compressor.select(corrected, density).indices) == keep(1000, density)
            exact_calls.append(corrected.materialized)
        assert exact_calls == [1, 1, 0, 1, 0]

    def test_zeros_send_only_zeros_and_do_not_affect_later_thresholds(self):
        compressor, state = PeriodicThreshold(), {}
        for _ in range(2):
            zeros = Corrected(torch.zeros(1000), state=state)
            assert not compressor.select(zeros, 0.01).values.any()
        assert len(compressor.select(Corrected(random(1000), state=state), 0.01).indices) == 10

    def test_it_is_resumed_in_the_middle_of_a_period(self):
        def choices(state, steps):
            compressor = PeriodicThreshold(period=5)
            return [
                compressor.select(Corrected(random(10_000, step), state=state), 0.01)
                for step in steps
            ]

        straight, state = {}, {}
        wanted = choices(straight, range(12))
        first = choices(state, range(3))
        for ours, theirs in zip(first + choices(state, range(3, 12)), wanted, strict=True):
            assert torch.equal(ours.indices, theirs.indices)
        assert state == straight

    def test_a_period_below_one_is_refused(self):
        with pytest.raises(ValueError, match='period must be at least 1, got 0'):
            PeriodicThreshold(period=0)


def shapes_in_one_bucket(*shapes) -> BucketSpec:
    return BucketSpec.of([ParameterSpec(str(n), shape) for n, shape in enumerate(shapes)], None)


class TestBlockTopK:
    def test_each_block_sends_its_largest(self):
        """Two chunks of 4 and a matrix of two tiles of 2 by 2, block after block."""
        spec = shapes_in_one_bucket((8,), (2, 4))
        values = torch.tensor([1.0, -2, 0, 0, 9, 8, 7, 0] + [0.0, 0.5, 0, 0, 3, -4, 2, 1])
        compressor = BlockTopK(1, BlockLayout(side=4))
        layout_of_2 = BlockTopK(1, BlockLayout(side=2))
        assert compressor.select(Corrected(values, spec=spec), 0.5).indices.tolist() == [1, 4, 13]
        # side=2: 4 chunks of 2, 2 tiles of 4
        sparse = layout_of_2.select(Corrected(values, spec=spec), 0.5)
        assert sparse.indices.tolist() == [1, sparse.indices[1], 4, 6, 9, 13]
        assert sparse.indices[1] in (2, 3)  # of two zeros
        assert torch.equal(sparse.values, values[sparse.indices])

    @pytest.mark.parametrize('k', [1, 3, 100])
    @pytest.mark.parametrize('side', [1, 4, 64])
    def test_it_sends_exactly_its_budget_whatever_the_density(self, k, side):
        spec = shapes_in_one_bucket((6, 10), (), (7,), (8, 3, 2, 2), (13, 1))
        compressor = BlockTopK(k, BlockLayout(side))
        values = random(spec.numel)
        budget = compressor.budget(spec, 0.001)
        assert budget == compressor.budget(spec, 1.0) <= spec.numel
        sparse = compressor.select(Corrected(values, spec=spec), 0.001)
        assert len(sparse.values) == budget
        assert torch.equal(sparse.indices, sparse.indices.unique())
        assert torch.equal(sparse.values, values[sparse.indices])
        for run in compressor.layout.runs(spec):
            for number in range(run.number):
                begin = run.offset + number * run.size
                block = values[begin : begin + run.size].abs()
                inside = (begin <= sparse.indices) & (sparse.indices < begin + run.size)
                chosen = sparse.indices[inside] - begin
                assert len(chosen) == min(k, run.size)
                rest = block.index_fill(0, chosen, 0)
                assert block[chosen].min() >= rest.max()

    def test_without_a_spec_all_is_one_block(self):
        values = random(100)
        sparse = BlockTopK(5, BlockLayout(4)).compress(values, 0.5)
        assert torch.equal(sparse.indices, TopK().compress(values, 0.05).indices)

    def test_a_nan_counts_as_the_largest_of_its_block(self):
        spec = shapes_in_one_bucket((8,))
        values = torch.tensor([5.0, torch.nan, 6, 7, 1, 2, 3, 4])
        sparse = BlockTopK(1, BlockLayout(4)).select(Corrected(values, spec=spec), 0.5)
        assert sparse.indices.tolist() == [1, 7]

    @pytest.mark.parametrize('k', [0, -1])
    def test_less_than_one_element_is_refused(self, k):
        with pytest.raises(ValueError, match=f'k must be at least 1 element of a block, got {k}'):
            BlockTopK(k, BlockLayout())
