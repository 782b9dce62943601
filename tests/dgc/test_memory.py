"""The law of every memory, sent + residual = corrected, and each one's equations."""

import pytest
import torch
from dgc_helpers import KEPT, bucket_of, kept_by
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.buckets import Bucket
from dgc.composition import describe
from dgc.compressors import Dense, SampledTopK, TopK
from dgc.exchanges import Exchanged
from dgc.memory import (
    AveragedMomentum,
    DecoupledMomentum,
    FirstMoment,
    MomentumCorrection,
    NoMemory,
    Residual,
    SAMomentum,
)
from dgc.schedule import DensitySchedule
from dgc.sparse import Sparse
from dgc.state import Elements, Resize

MEMORIES = {
    'none': NoMemory,
    'residual': Residual,
    'fading residual': lambda: Residual(decay=0.95),
    'decoupled momentum': DecoupledMomentum,
    'first moment': lambda: FirstMoment(beta1=0.0),
    'first moment, masked': lambda: FirstMoment(beta1=0.0, momentum_masking=True),
    'averaged momentum': lambda: AveragedMomentum(beta1=0.0),
    'momentum correction': MomentumCorrection,
    'no masking': lambda: MomentumCorrection(momentum_masking=False),
}
COMPRESSORS = {
    'dense': Dense,
    'top-k': TopK,
    'sampled': SampledTopK,
    'uniform': lambda: SampledTopK(strided_sample=False),
}
every_memory = pytest.mark.parametrize('make_memory', MEMORIES.values(), ids=MEMORIES)
every_compressor = pytest.mark.parametrize('make_compressor', COMPRESSORS.values(), ids=COMPRESSORS)
numbers = st.floats(-1e6, 1e6, width=32)


def bucket_for(memory, gradient, density=1.0, momentum=0.9, nesterov=False):
    if not isinstance(gradient, torch.Tensor):
        gradient = torch.tensor(gradient)
    return bucket_of(gradient, memory.buffers, momentum, nesterov, density)


@every_memory
@every_compressor
@settings(deadline=None, max_examples=15)
@given(
    gradients=st.lists(st.lists(numbers, min_size=40, max_size=40), min_size=1, max_size=3),
    density=st.sampled_from([0.001, 0.1, 0.5, 1.0]),
    nesterov=st.booleans(),
)
def test_sent_and_residual_are_corrected_bit_for_bit(
    make_memory, make_compressor, gradients, density, nesterov
):
    memory, compressor = make_memory(), make_compressor()
    bucket = bucket_for(memory, gradients[0], density, nesterov=nesterov)
    for gradient in gradients:
        bucket.gradient.copy_(torch.tensor(gradient))
        corrected = memory.compensate(copy_of(bucket, memory)).clone()
        sent = take(memory, bucket, compressor)
        kept = kept_by(bucket)
        if isinstance(memory, NoMemory):
            at = torch.arange(40) if sent.is_dense else sent.indices
            assert torch.equal(sent.values, corrected[at])
        else:
            assert torch.equal(sent.to_dense() + kept, corrected)
            assert sent.is_dense or not kept[sent.indices].any()


def take(memory, bucket, compressor) -> Sparse:
    """What is selected, delivered whole."""
    selected = memory.select(bucket, compressor)
    selected = selected._replace(values=selected.values.clone())
    memory.update(bucket, selected, Exchanged([]), [])
    return selected


def copy_of(bucket, memory):
    other = bucket_for(memory, bucket.gradient, bucket.density, bucket.momentum, bucket.nesterov)
    for name, flat in bucket.buffers.items():
        other.buffers[name].copy_(flat)
    return other


@every_memory
def test_an_error_returns_to_the_residual_alone(make_memory):
    memory = make_memory()
    bucket = bucket_for(memory, [4.0, 3.0, 2.0, 1.0], density=0.5)
    take(memory, bucket, TopK())
    before, kept = {k: v.clone() for k, v in bucket.buffers.items()}, kept_by(bucket)
    error = Sparse(torch.tensor([0.25, -0.5]), torch.tensor([0, 1]), 4)
    memory.add_error(bucket, error)
    returned = torch.zeros(4) if isinstance(memory, NoMemory) else error.to_dense()
    assert torch.equal(kept_by(bucket), kept + returned)
    if 'momentum' in before:
        assert torch.equal(bucket.buffers['momentum'], before['momentum'])


@every_memory
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_gradients_are_selected_in_float32(make_memory, dtype):
    memory = make_memory()
    gradient = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=dtype)
    sent = memory.select(bucket_for(memory, gradient, density=0.5), TopK())
    assert sent.values.dtype == torch.float32
    assert sent.to_dense().tolist() == [0, -2, 3, 0]


def test_residual_adds_what_was_not_sent_to_the_next_gradient():
    memory = Residual()
    bucket = bucket_for(memory, [3.0, 2.0, 1.0], density=0.3)
    assert take(memory, bucket, TopK()).to_dense().tolist() == [3, 0, 0]
    assert bucket.buffers['residual'].tolist() == [0, 2, 1]
    bucket.gradient.copy_(torch.tensor([3.0, 2.0, 1.0]))
    assert take(memory, bucket, TopK()).to_dense().tolist() == [0, 4, 0]
    assert bucket.buffers['residual'].tolist() == [3, 0, 2]


@pytest.mark.parametrize('masking', [True, False])
def test_momentum_correction_is_equation_5_with_or_without_masking(masking):
    memory = MomentumCorrection(masking)
    bucket = bucket_for(memory, [8.0, 4.0], density=0.5, momentum=0.5)
    assert take(memory, bucket, TopK()).to_dense().tolist() == [8, 0]
    assert bucket.buffers['momentum'].tolist() == [0.0 if masking else 8.0, 4]
    assert bucket.buffers['velocity'].tolist() == [0, 4]
    bucket.gradient.zero_()
    # Not sent: u = 0.5·4 = 2, v = 4 + 2. Sent: u = 0 or 0.5·8.
    assert take(memory, bucket, TopK()).to_dense().tolist() == [0, 6]
    assert bucket.buffers['velocity'].tolist() == [0.0 if masking else 4.0, 0]
    assert bucket.buffers['momentum'].tolist() == [0.0 if masking else 4.0, 0.0 if masking else 2.0]


@pytest.mark.parametrize('masking', [True, False])
@pytest.mark.parametrize('every', [1, 4, 10])
def test_masking_shortens_the_steps_of_elements_that_are_sent_often(masking, every):
    """docs/dgc.md: as a part of momentum SGD's, the mean of 1 - m^j for j from 1 to ``every``."""
    memory, momentum = MomentumCorrection(masking), 0.9
    # With equal gradients, top-k sends the element that has waited longest. A bucket of one
    # element would be uncompressed: then there is a second one, which has no gradient.
    gradient = torch.ones(every) if every > 1 else torch.tensor([1.0, 0.0])
    bucket = bucket_for(memory, gradient, 1 / len(gradient), momentum)
    for _ in range(100 * every):  # until the momentum has settled
        take(memory, bucket, TopK())
    moved = sum(take(memory, bucket, TopK()).to_dense().sum().item() for _ in range(every))
    of_momentum_sgd = every * every / (1 - momentum)  # elements, steps, and the step of each
    part = sum(1 - momentum**step for step in range(1, every + 1)) / every if masking else 1.0
    assert moved / of_momentum_sgd == pytest.approx(part, rel=1e-4)


def test_nesterov_looks_ahead():
    memory = MomentumCorrection()
    bucket = bucket_for(memory, [8.0], momentum=0.5, nesterov=True)
    assert take(memory, bucket, Dense()).values.tolist() == [12]  # u = 0.5·8, v = u + 8
    bucket.gradient.fill_(8)
    assert take(memory, bucket, Dense()).values.tolist() == [14]  # u = 0.5·(4 + 8), v = u + 8


@pytest.mark.parametrize('nesterov', [False, True])
def test_parts_of_a_gradient_are_as_their_sum(nesterov):
    """Of a step with several exchanges; momentum is applied with the first part only."""
    states = []
    for parts in ([[8.0, 4.0]], [[5.0, 1.0], [3.0, 3.0]]):
        memory = MomentumCorrection()
        bucket = bucket_for(memory, [0.0, 0.0], momentum=0.5, nesterov=nesterov)
        bucket.buffers['momentum'].copy_(torch.tensor([2.0, 1.0]))
        for number, part in enumerate(parts):
            bucket.continued = {'weight'} if number else set()
            bucket.gradient.copy_(torch.tensor(part))
            memory.compensate(bucket)
        states.append([bucket.buffers[name].tolist() for name in ('momentum', 'velocity')])
    u = [5.0, 2.5] if nesterov else [9.0, 4.5]
    assert states == [[u, [13.0, 6.5] if nesterov else u]] * 2


def test_parts_of_a_gradient_are_as_their_sum_in_the_first_moment():
    """Of two exchanges: for one parameter two parts of a gradient, for the other two gradients."""
    memory = FirstMoment(0.75)
    spec = ParameterSpec('continued', (1, 1)), ParameterSpec('new', (1, 1))
    named = [(each, torch.nn.Parameter(torch.zeros(each.shape)), {}) for each in spec]
    bucket = Bucket(
        BucketSpec.of([each for each, _, _ in named], DensitySchedule()),
        [(parameter, group) for _, parameter, group in named],
        {'memory': {name: Elements() for name in memory.buffers}},
    )
    bucket.buffers['momentum'].copy_(torch.tensor([4.0, 8.0]))
    bucket.buffers['velocity'].fill_(1.0)
    for continued, gradient in ((set(), [5.0, 4.0]), ({'continued'}, [3.0, 4.0])):
        bucket.continued = continued
        bucket.gradient.copy_(torch.tensor(gradient))
        memory.compensate(bucket)
    # u = 0.75·4 + 0.25·8 once, and 0.75·8 + 0.25·4 = 7, then 0.75·7 + 0.25·4.
    assert bucket.buffers['momentum'].tolist() == [5.0, 6.25]
    assert bucket.buffers['velocity'].tolist() == [6.0, 1 + 7 + 6.25]


def test_a_dense_message_masks_nothing_and_flushes_the_residual():
    memory = MomentumCorrection()
    bucket = bucket_for(memory, [1.0, 2.0], momentum=0.5)
    bucket.buffers['velocity'].copy_(torch.tensor([10.0, 20.0]))
    assert take(memory, bucket, Dense()).values.tolist() == [11, 22]
    assert bucket.buffers['velocity'].tolist() == [0, 0]
    assert bucket.buffers['momentum'].tolist() == [1, 2]


@every_memory
def test_what_was_not_delivered_stays(make_memory):
    """Momentum is masked only where something was: at index 1, and not at index 0."""
    memory = make_memory()
    bucket = bucket_for(memory, [4.0, 3.0, 2.0, 1.0], density=0.5)
    selected = memory.select(bucket, TopK())
    before = {name: flat.clone() for name, flat in bucket.buffers.items()}
    sent = selected.at(torch.tensor([False, True]))
    memory.update(bucket, selected, Exchanged([], sent=sent), [])
    for name, flat in bucket.buffers.items():
        masked = name in KEPT or getattr(memory, 'momentum_masking', False)
        assert flat[1] == (0 if masked else before[name][1])
        assert torch.equal(flat[[0, 2, 3]], before[name][[0, 2, 3]])


class TestFadingResidual:
    def test_an_element_that_waits_fades_by_the_decay_at_every_step(self):
        memory = Residual(decay=0.5)
        bucket = bucket_for(memory, [8.0, 4.0], density=0.5)
        assert take(memory, bucket, TopK()).to_dense().tolist() == [8, 0]
        bucket.gradient.zero_()
        bucket.gradient[0] = 8
        assert take(memory, bucket, TopK()).to_dense().tolist() == [8, 0]
        assert bucket.buffers['residual'].tolist() == [0, 2]
        bucket.gradient.zero_()
        assert take(memory, bucket, TopK()).to_dense().tolist() == [0, 1]
        assert bucket.buffers['residual'].tolist() == [0, 0]

    def test_the_decay_is_applied_before_the_gradient_is_added_and_errors_are_added_whole(self):
        memory = Residual(decay=0.25)
        bucket = bucket_for(memory, [1.0, 2.0])
        bucket.buffers['residual'].copy_(torch.tensor([4.0, -8.0]))
        assert memory.compensate(bucket).tolist() == [2, 0]
        memory.add_error(bucket, Sparse(torch.tensor([0.5]), torch.tensor([1]), 2))
        assert bucket.buffers['residual'].tolist() == [2, 0.5]

    def test_without_decay_it_is_the_plain_residual(self):
        plain, explicit = Residual(), Residual(decay=1.0)
        ours, theirs = (bucket_for(plain, [3.0, 2.0, 1.0], density=0.3) for _ in range(2))
        for _ in range(3):
            one, other = take(plain, ours, TopK()), take(explicit, theirs, TopK())
            assert torch.equal(one.to_dense(), other.to_dense())
            assert torch.equal(ours.buffers['residual'], theirs.buffers['residual'])

    @pytest.mark.parametrize('make', [Residual, DecoupledMomentum])
    @pytest.mark.parametrize('decay', [0.0, -0.5, 1.001, float('nan')])
    def test_a_decay_outside_0_to_1_is_refused(self, make, decay):
        with pytest.raises(ValueError, match='decay must be above 0 and at most 1, got'):
            make(decay)


class TestDecoupledMomentum:
    def test_the_residual_is_a_momentum_of_gradients_times_the_learning_rate(self):
        """δ ← β·δ + η·g; what is sent leaves δ."""
        memory = DecoupledMomentum(decay=0.5)
        bucket = bucket_for(memory, [8.0, 4.0], density=0.5)
        bucket.members[0].group['lr'] = 0.25
        assert take(memory, bucket, TopK()).to_dense().tolist() == [2, 0]
        assert bucket.buffers['residual'].tolist() == [0, 1]
        bucket.members[0].group['lr'] = 0.125  # a schedule of the learning rate is followed
        assert take(memory, bucket, TopK()).to_dense().tolist() == [1, 0]
        assert bucket.buffers['residual'].tolist() == [0, 0.5 * 1 + 0.125 * 4]

    def test_against_a_plain_loop(self):
        memory, draw = DecoupledMomentum(decay=0.9), torch.Generator().manual_seed(0)
        bucket = bucket_for(memory, torch.zeros(20), density=0.2)
        bucket.members[0].group['lr'] = 0.1
        delta = [0.0] * 20
        for _ in range(10):
            gradient = torch.randn(20, generator=draw)
            bucket.gradient.copy_(gradient)
            delta = [0.9 * d + 0.1 * g for d, g in zip(delta, gradient.tolist(), strict=True)]
            expected = sorted(sorted(range(20), key=lambda i: -abs(delta[i]))[:4])
            sent = take(memory, bucket, TopK())
            assert sent.indices.tolist() == expected
            assert sent.values.tolist() == pytest.approx([delta[i] for i in expected], rel=1e-5)
            for index in expected:
                delta[index] = 0.0
            assert bucket.buffers['residual'].tolist() == pytest.approx(delta, rel=1e-5, abs=1e-7)

    def test_a_momentum_of_the_optimizer_is_refused(self):
        DecoupledMomentum().check(0.0, nesterov=False)
        with pytest.raises(ValueError, match=r'decay=0\.999.* is 0\.9: set .* momentum to 0'):
            DecoupledMomentum().check(0.9, nesterov=False)

    @pytest.mark.parametrize('numel', [6, 5000])
    def test_no_fused_kernel_skips_the_scaling(self, numel):
        memory = DecoupledMomentum(decay=0.5)
        bucket = bucket_for(memory, torch.full((numel,), 4.0))
        bucket.members[0].group['lr'] = 0.5
        assert memory.select(bucket, SampledTopK()).values.unique().tolist() == [2.0]


class TestFirstMoment:
    @pytest.mark.parametrize('masking', [True, False])
    def test_the_moment_is_accumulated_until_it_is_sent(self, masking):
        """u ← β1·u + (1 - β1)·g, v ← v + u."""
        memory = FirstMoment(0.5, masking)
        bucket = bucket_for(memory, [8.0, 4.0], density=0.5, momentum=0.0)
        assert take(memory, bucket, TopK()).to_dense().tolist() == [4, 0]
        assert bucket.buffers['momentum'].tolist() == [0.0 if masking else 4.0, 2]
        assert bucket.buffers['velocity'].tolist() == [0, 2]
        bucket.gradient.zero_()
        assert take(memory, bucket, TopK()).to_dense().tolist() == [0, 3]

    def test_uncompressed_it_is_the_first_moment_of_adam(self):
        """Adam with beta1 on g takes the steps of Adam without one on what is sent, but for the
        second moment and the correction of its bias."""
        memory, draw = FirstMoment(0.9, momentum_masking=True), torch.Generator().manual_seed(0)
        bucket = bucket_for(memory, torch.zeros(6), density=None, momentum=0.0)
        parameter = torch.nn.Parameter(torch.zeros(6))
        adam = torch.optim.Adam([parameter], betas=(0.9, 0.999))
        for _ in range(5):
            bucket.gradient.copy_(torch.randn(6, generator=draw))
            parameter.grad = bucket.gradient.clone()
            adam.step()
            sent = take(memory, bucket, Dense())
            torch.testing.assert_close(sent.values, adam.state[parameter]['exp_avg'])

    def test_another_first_moment_is_refused(self):
        adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
        with pytest.raises(ValueError, match=r'beta1=0\.9\).*Adam would apply another .beta1=0\.9'):
            FirstMoment().check_optimizer(adam)
        adam.param_groups[0]['betas'] = (0.0, 0.999)
        FirstMoment().check_optimizer(adam)
        with pytest.raises(ValueError, match="set the optimizer's momentum to 0"):
            FirstMoment().check(0.9, nesterov=False)

    @pytest.mark.parametrize('beta1', [-0.1, 1.0, float('nan')])
    def test_a_decay_outside_0_to_1_is_refused(self, beta1):
        with pytest.raises(ValueError, match='beta1 must be at least 0 and below 1, got'):
            FirstMoment(beta1)


class TestAveragedMomentum:
    def bucket(self, memory, gradient, density):
        """With the state that the memory declares."""
        bucket = bucket_for(memory, gradient)
        bucket.density = density
        return bucket

    def test_in_the_warm_up_gradients_pass_and_the_mean_is_tracked(self):
        memory = AveragedMomentum(beta1=0.5)
        bucket = self.bucket(memory, [8.0, 4.0], density=None)
        for expected in ([1.0, 3.0], [1.5, 4.5]):
            selected = memory.select(bucket, Dense())
            assert selected.values.tolist() == [8, 4]
            mean = [torch.tensor([2.0]), torch.tensor([6.0])]  # in the pieces of two parameters
            memory.update(bucket, selected, Exchanged([selected]), mean)
            assert bucket.buffers['momentum'].tolist() == expected
        assert not bucket.buffers['residual'].any()

    def test_compressed_every_rank_goes_on_from_the_mean_of_what_was_decoded(self):
        """m ← β1·m̄ + (1 - β1)·g; send m + e; e ← m + e - sent; m̄ ← the mean."""
        memory = AveragedMomentum(beta1=0.5)
        bucket = self.bucket(memory, [8.0, 4.0], density=1.0)
        bucket.buffers['momentum'].copy_(torch.tensor([2.0, 6.0]))
        bucket.buffers['residual'].copy_(torch.tensor([0.5, -0.5]))
        selected = memory.select(bucket, Dense())
        assert selected.values.tolist() == [0.5 * 2 + 0.5 * 8 + 0.5, 0.5 * 6 + 0.5 * 4 - 0.5]
        error = Sparse(torch.tensor([0.25, 0.125]), None, 2)
        memory.update(bucket, selected, Exchanged([], error), [torch.tensor([7.0, 9.0])])
        assert bucket.buffers['residual'].tolist() == [0.25, 0.125]
        assert bucket.buffers['momentum'].tolist() == [7, 9]

    def test_a_sparse_message_leaves_the_rest_in_the_residual(self):
        memory = AveragedMomentum(beta1=0.0)
        bucket = self.bucket(memory, [8.0, 4.0], density=0.5)
        assert take(memory, bucket, TopK()).to_dense().tolist() == [8, 0]
        assert bucket.buffers['residual'].tolist() == [0, 4]

    def test_the_momentum_is_replicated_and_residuals_add_up(self):
        entries = AveragedMomentum().state_for(BucketSpec.of_shape(2))
        assert entries == {'momentum': Elements(Resize.REPLICATED), 'residual': Elements()}

    def test_a_momentum_of_the_optimizer_is_refused(self):
        AveragedMomentum().check(0.0, nesterov=False)
        with pytest.raises(ValueError, match="set the optimizer's momentum to 0"):
            AveragedMomentum().check(0.9, nesterov=False)

    @pytest.mark.parametrize('beta1', [-0.1, 1.0, float('nan')])
    def test_a_decay_outside_0_to_1_is_refused(self, beta1):
        with pytest.raises(ValueError, match='beta1 must be at least 0 and below 1, got'):
            AveragedMomentum(beta1)


@pytest.mark.parametrize(
    'memory',
    [Residual(), DecoupledMomentum(), FirstMoment(), MomentumCorrection(), SAMomentum()],
    ids=describe,
)
def test_every_tensor_of_a_memory_adds_up_over_the_ranks(memory):
    entries = memory.state_for(BucketSpec.of_shape(2))
    assert entries == {name: Elements(Resize.SUM) for name in memory.buffers}
