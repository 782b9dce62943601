"""The law of every memory, sent + kept = corrected, and each one's equations."""

import pytest
import torch
from dgc_helpers import KEPT, bucket_of, kept_by
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.compressors import Dense, SampledTopK, TopK
from dgc.exchanges import Exchanged
from dgc.memory import MomentumCorrection, NoMemory, Residual
from dgc.sparse import Sparse

MEMORIES = {
    'none': NoMemory,
    'residual': Residual,
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


def bucket_for(memory, gradient, ratio=1.0, momentum=0.9, nesterov=False):
    if not isinstance(gradient, torch.Tensor):
        gradient = torch.tensor(gradient)
    return bucket_of(gradient, memory.buffers, momentum, nesterov, ratio)


@every_memory
@every_compressor
@settings(deadline=None, max_examples=15)
@given(
    gradients=st.lists(st.lists(numbers, min_size=40, max_size=40), min_size=1, max_size=3),
    ratio=st.sampled_from([0.001, 0.1, 0.5, 1.0]),
    nesterov=st.booleans(),
)
def test_sent_and_kept_are_corrected_bit_for_bit(
    make_memory, make_compressor, gradients, ratio, nesterov
):
    memory, compressor = make_memory(), make_compressor()
    bucket = bucket_for(memory, gradients[0], ratio, nesterov=nesterov)
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
    memory.settle(bucket, selected, Exchanged([], None))
    return selected


def copy_of(bucket, memory):
    other = bucket_for(memory, bucket.gradient, bucket.ratio, bucket.momentum, bucket.nesterov)
    for name, flat in bucket.buffers.items():
        other.buffers[name].copy_(flat)
    return other


@every_memory
def test_what_is_left_out_comes_back_to_what_is_kept_alone(make_memory):
    memory = make_memory()
    bucket = bucket_for(memory, [4.0, 3.0, 2.0, 1.0], ratio=0.5)
    take(memory, bucket, TopK())
    before, kept = {k: v.clone() for k, v in bucket.buffers.items()}, kept_by(bucket)
    left_out = Sparse(torch.tensor([0.25, -0.5]), torch.tensor([0, 1]), 4)
    memory.restore(bucket, left_out)
    returned = torch.zeros(4) if isinstance(memory, NoMemory) else left_out.to_dense()
    assert torch.equal(kept_by(bucket), kept + returned)
    if 'momentum' in before:
        assert torch.equal(bucket.buffers['momentum'], before['momentum'])


@every_memory
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_gradients_are_selected_in_float32(make_memory, dtype):
    memory = make_memory()
    gradient = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=dtype)
    sent = memory.select(bucket_for(memory, gradient, ratio=0.5), TopK())
    assert sent.values.dtype == torch.float32
    assert sent.to_dense().tolist() == [0, -2, 3, 0]


def test_residual_adds_what_was_not_sent_to_the_next_gradient():
    memory = Residual()
    bucket = bucket_for(memory, [3.0, 2.0, 1.0], ratio=0.3)
    assert take(memory, bucket, TopK()).to_dense().tolist() == [3, 0, 0]
    assert bucket.buffers['residual'].tolist() == [0, 2, 1]
    bucket.gradient.copy_(torch.tensor([3.0, 2.0, 1.0]))
    assert take(memory, bucket, TopK()).to_dense().tolist() == [0, 4, 0]
    assert bucket.buffers['residual'].tolist() == [3, 0, 2]


@pytest.mark.parametrize('masking', [True, False])
def test_momentum_correction_is_equation_5_with_or_without_masking(masking):
    memory = MomentumCorrection(masking)
    bucket = bucket_for(memory, [8.0, 4.0], ratio=0.5, momentum=0.5)
    assert take(memory, bucket, TopK()).to_dense().tolist() == [8, 0]
    assert bucket.buffers['momentum'].tolist() == [0.0 if masking else 8.0, 4]
    assert bucket.buffers['velocity'].tolist() == [0, 4]
    bucket.gradient.zero_()
    # Not sent: u = 0.5·4 = 2, v = 4 + 2. Sent: u = 0 or 0.5·8.
    assert take(memory, bucket, TopK()).to_dense().tolist() == [0, 6]
    assert bucket.buffers['velocity'].tolist() == [0.0 if masking else 4.0, 0]
    assert bucket.buffers['momentum'].tolist() == [0.0 if masking else 4.0, 0.0 if masking else 2.0]


def test_nesterov_looks_ahead():
    memory = MomentumCorrection()
    bucket = bucket_for(memory, [8.0], momentum=0.5, nesterov=True)
    assert take(memory, bucket, Dense()).values.tolist() == [12]  # u = 0.5·8, v = u + 8
    bucket.gradient.fill_(8)
    assert take(memory, bucket, Dense()).values.tolist() == [14]  # u = 0.5·(4 + 8), v = u + 8


def test_a_dense_message_masks_nothing_and_flushes_what_was_kept():
    memory = MomentumCorrection()
    bucket = bucket_for(memory, [1.0, 2.0], momentum=0.5)
    bucket.buffers['velocity'].copy_(torch.tensor([10.0, 20.0]))
    assert take(memory, bucket, Dense()).values.tolist() == [11, 22]
    assert bucket.buffers['velocity'].tolist() == [0, 0]
    assert bucket.buffers['momentum'].tolist() == [1, 2]


@every_memory
def test_what_was_not_delivered_is_never_forgotten(make_memory):
    """Momentum is masked only where something was: at index 1, and not at index 0."""
    memory = make_memory()
    bucket = bucket_for(memory, [4.0, 3.0, 2.0, 1.0], ratio=0.5)
    selected = memory.select(bucket, TopK())
    before = {name: flat.clone() for name, flat in bucket.buffers.items()}
    sent = selected.at(torch.tensor([False, True]))
    memory.settle(bucket, selected, Exchanged([], None, sent))
    for name, flat in bucket.buffers.items():
        masked = name in KEPT or getattr(memory, 'momentum_masking', False)
        assert flat[1] == (0 if masked else before[name][1])
        assert torch.equal(flat[[0, 2, 3]], before[name][[0, 2, 3]])
