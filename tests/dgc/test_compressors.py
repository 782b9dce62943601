"""What every compressor owes, and what the sampled threshold adds."""

import math

import pytest
import torch
from dgc_helpers import keep_count
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.compressors import Dense, SampledTopK, TopK, keep
from dgc.compressors.sampled import sample_stride

SPARSE = {
    'top-k': TopK,
    'sampled': SampledTopK,
    'uniform': lambda: SampledTopK(strided_sample=False),
    'no resample': lambda: SampledTopK(resample=False),
    'one adaptation': lambda: SampledTopK(max_adaptation_iters=1),
    'large sample': lambda: SampledTopK(sample_ratio=0.25),
}
every = pytest.mark.parametrize('make', SPARSE.values(), ids=SPARSE)
RATIOS = st.sampled_from([0.001, 0.01, 0.1, 0.25, 0.9, 1.0])


def random(numel: int, seed: int = 0) -> torch.Tensor:
    """Heavy-tailed, as gradients are."""
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed)).pow(3)


@pytest.mark.parametrize(
    ('numel', 'ratio', 'k'),
    [(1, 0.001, 1), (9, 0.001, 1), (1, 0.25, 1), (9, 0.25, 3), (1000, 0.001, 1), (0, 0.1, 0),
     (1000, 0.0011, 2), (7, 1.0, 7), (7, 3.0, 7)],
)  # fmt: skip
def test_a_ratio_keeps_at_least_one_and_at_most_all(numel, ratio, k):
    assert keep(numel, ratio) == k


@every
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3000), RATIOS, st.integers(0, 5))
def test_a_message_is_the_largest_elements_as_they_are(make, numel, ratio, seed):
    corrected = random(numel, seed)
    sparse = make().compress(corrected, ratio)
    chosen, k = sparse.indices, keep_count(numel, ratio)
    assert sparse.numel == numel
    assert 1 <= len(chosen) <= k
    assert chosen.dtype == torch.int64
    assert len(chosen.unique()) == len(chosen)
    assert torch.equal(sparse.values, corrected[chosen])
    rest = corrected.abs().index_fill(0, chosen, 0)
    assert sparse.values.abs().min() >= rest.max()


@every
@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([0.0, 1.0, -1.0, 3.0]), min_size=1, max_size=1500), RATIOS)
def test_ties_keep_at_most_k_the_same_each_time_and_never_nothing(make, elements, ratio):
    corrected = torch.tensor(elements)
    one, other = (make().compress(corrected, ratio) for _ in range(2))
    assert torch.equal(one.indices, other.indices)
    assert len(one.indices) <= keep_count(len(elements), ratio)
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
@pytest.mark.parametrize('ratio', [0.001, 0.25])
def test_tiny_tensors_keep_what_the_ratio_says(make, numel, ratio):
    """pytorch#140396: k = 0, or more than there is."""
    assert len(make().compress(random(numel), ratio).indices) == keep_count(numel, ratio)


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


def test_top_k_is_exact():
    corrected = torch.tensor([1.0, -5.0, 3.0, -4.0, 0.0])
    assert sorted(TopK().compress(corrected, 0.5).indices.tolist()) == [1, 2, 3]


class TestSampledTopK:
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
        """At the same calls, the same start; a compressor remembers how many there were."""
        corrected = random(5000)

        def choices(compressor, number):
            return [compressor.compress(corrected, 0.02).indices.tolist() for _ in range(number)]

        straight = choices(SampledTopK(seed=1), 6)
        assert any(one != straight[0] for one in straight)
        assert straight != choices(SampledTopK(seed=2), 6)
        interrupted = SampledTopK(seed=1)
        first = choices(interrupted, 3)
        resumed = SampledTopK(seed=1)
        resumed.load_state_dict(interrupted.state_dict())
        assert first + choices(resumed, 3) == straight

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
