"""Memories in bfloat16: how they round, what is conserved, and what is saved."""

import io
import math
from contextlib import nullcontext

import pytest
import torch
from dgc_helpers import bucket_of, exact, parameters, train, values, wrap
from hypothesis import given, settings
from hypothesis import strategies as st
from state_helpers import assert_same

import dgc
from dgc import ops
from dgc.compressors import Dense, SampledTopK, TopK
from dgc.exchanges import Exchanged, Hierarchical
from dgc.exchanges.all_gather import AllGather
from dgc.handshake import HandshakeError
from dgc.memory import FirstMoment, MomentumCorrection, Residual
from dgc.ops.rounding import add_rounded, draws, rounded
from dgc.ops.uniform import keys
from dgc.saved_state import merge_states
from dgc.sparse import Sparse

MEMORIES = {
    'residual': lambda **s: Residual(**s),
    'fading residual': lambda **s: Residual(decay=0.9, **s),
    'momentum correction': lambda **s: MomentumCorrection(**s),
    'no masking': lambda **s: MomentumCorrection(momentum_masking=False, **s),
    'first moment': lambda **s: FirstMoment(**s),
}
every_memory = pytest.mark.parametrize('make', MEMORIES.values(), ids=MEMORIES)
COUNT = 1024  # seeds


def drawn(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return draws(keys(seed), torch.arange(count))


class TestRounding:
    @settings(deadline=None, max_examples=60)
    @given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 2**40))
    def test_it_is_one_of_the_two_neighbours(self, number, seed):
        result = float(rounded(torch.full((1,), number), drawn(seed, 1)[0]))
        nearest = float(torch.tensor(number).bfloat16())
        if nearest == number:
            assert result == number
            assert math.copysign(1, result) == math.copysign(1, number)
        elif math.isfinite(result):
            assert abs(result - number) < max(2.0**-7 * abs(number), 2.0**-133)
            assert (result - number) * (nearest - number) > 0 or abs(result - number) >= abs(
                nearest - number
            )

    def test_each_number_of_16_bits_rounds_up_as_often_as_it_should(self):
        """Over all 65536 draws, the mean is the number itself, exactly."""
        low = torch.arange(2**16)
        for word in (0x3F800001, 0x3F80ABCD, 0x00000003, 0x7F00FFFF, 0x42C8F00D):
            for sign in (1, -1):
                number = torch.tensor([word], dtype=torch.int32).view(torch.float32) * sign
                found = rounded(number.expand(2**16).contiguous(), low)
                assert float(found.double().mean()) == float(number)

    @pytest.mark.parametrize('half', [0, 1])
    def test_the_mean_over_seeds_is_the_number(self, half):
        numbers = torch.randn(200, generator=torch.Generator().manual_seed(1))
        error = torch.zeros(200, dtype=torch.float64)
        for seed in range(COUNT):
            error += rounded(numbers, drawn(seed, 200)[half]).double() - numbers
        ulp = 2.0 ** (numbers.abs().log2().floor() - 7).double()
        assert float((error / COUNT / ulp).abs().max()) < 5 * 0.5 / math.sqrt(COUNT)

    def test_errors_of_u_and_v_and_of_neighbours_are_uncorrelated(self):
        size = 100_000
        streams = [half / 2**16 - 0.5 for seed in (0, 1, 2**32) for half in drawn(seed, size)]
        pairs = [(a, b) for i, a in enumerate(streams) for b in streams[:i]]
        pairs += [(a[gap:], a[:-gap]) for a in streams for gap in (1, 2, 64, 1024)]
        for one, other in pairs:
            assert abs(float((one * other).mean()) * 12) < 6 / math.sqrt(size)

    def test_what_is_not_finite_stays_so(self):
        words = [0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, -1, -0x800000]
        special = torch.tensor(words, dtype=torch.int32).view(torch.float32)
        for seed in range(50):
            assert not rounded(special, drawn(seed, 6)[0]).isfinite().any()

    def test_an_index_that_occurs_twice_is_added_twice(self):
        flat = torch.zeros(4, dtype=torch.bfloat16)
        part = Sparse(torch.tensor([1.0, 2.0, 0.5]), torch.tensor([2, 0, 2]), 4)
        add_rounded(flat, part, (1, 2))
        assert flat.tolist() == [2.0, 0.0, 1.5, 0.0]


def twins(make, numel=600, density=0.05, nesterov=False):
    """A memory in bfloat16 and its bucket."""
    memory = make(dtype='bfloat16')
    bucket = bucket_of(torch.zeros(numel), memory.buffers, 0.9, nesterov, density)
    for name in memory.buffers:
        bucket.buffers[name] = torch.zeros(numel, dtype=torch.bfloat16)
    return memory, bucket


@every_memory
@pytest.mark.parametrize('compressor', [Dense, TopK, SampledTopK], ids=lambda c: c.__name__)
@pytest.mark.parametrize('nesterov', [False, True])
def test_each_step_conserves_up_to_its_rounding(make, compressor, nesterov):
    """sent + residual = corrected bit for bit; corrected = old + gradient + ε, |ε| < 2⁻⁷|…|, and
    the mean of ε over all elements and steps, in units of its largest value, is 0."""
    memory, bucket = twins(make, nesterov=nesterov)
    exactly, units = make(), []
    for step in range(40):
        gradient = torch.randn(600, generator=torch.Generator().manual_seed(step))
        bucket.gradient.copy_(gradient)
        reference = bucket_of(gradient, memory.buffers, 0.9, nesterov, 0.05)
        for name in memory.buffers:
            reference.buffers[name].copy_(bucket.buffers[name])
        wanted = exactly.compensate(reference).clone()
        selected = memory.select(bucket, compressor())
        selected = selected._replace(values=selected.values.clone())
        corrected = bucket.buffers[memory.unsent].float()
        for name in memory.buffers:
            error = bucket.buffers[name].float() - reference.buffers[name]
            assert bool((error.abs() <= 2.0**-7 * reference.buffers[name].abs()).all())
        error = corrected.double() - wanted.double()
        units.append(error / (2.0 ** (wanted.abs().log2().floor() - 7)).clamp(min=1e-30))
        memory.update(bucket, selected, Exchanged([]), [])
        kept = bucket.buffers[memory.unsent].float()
        assert torch.equal(selected.to_dense() + kept, corrected)
    units = torch.cat(units)
    assert float(units.abs().max()) < 1
    assert float(units.mean().abs()) < 5 * 0.41 / math.sqrt(len(units))
    assert float(units.abs().mean()) > 0.2  # it does round


def test_small_gradients_are_not_lost():
    """To the nearest, a residual of 1 would ignore every gradient below 2⁻⁹."""
    memory, bucket = twins(Residual, numel=1000)
    bucket.buffers['residual'].fill_(1.0)
    bucket.gradient.fill_(2.0**-11)
    for _ in range(256):
        memory.compensate(bucket)
    mean = float(bucket.buffers['residual'].double().mean())
    assert abs(mean - 1.125) < 0.01
    nearest = torch.ones(1, dtype=torch.bfloat16)
    for _ in range(256):
        nearest += 2.0**-11
    assert float(nearest) == 1.0


@every_memory
def test_errors_return_to_it(make):
    memory, bucket = twins(make)
    before = bucket.buffers[memory.unsent].clone()
    memory.add_error(bucket, Sparse(torch.tensor([0.5, -0.25]), torch.tensor([3, 9]), 600))
    after = bucket.buffers[memory.unsent]
    assert (after - before).nonzero().view(-1).tolist() == [3, 9]
    memory.add_error(bucket, Sparse(torch.ones(600), None, 600))
    assert after[[3, 9, 10]].tolist() == [1.5, 0.75, 1.0]


def composition(dtype, make=MomentumCorrection, **parts):
    return exact(memory=make(dtype=dtype), **parts)


@pytest.mark.parametrize('unfused', [False, True])
def test_tensors_and_what_is_saved_are_bfloat16(unfused):
    named = parameters()
    optimizer = wrap(named, composition('bfloat16'), momentum=0.9)
    with ops.unfused() if unfused else nullcontext():
        train(optimizer, named, 2)
    for bucket in optimizer.reducer.buckets:
        assert {flat.dtype for flat in bucket.buffers.values()} == {torch.bfloat16}
        assert sum(flat.nbytes for flat in bucket.buffers.values()) == 4 * bucket.numel
    for tensors in optimizer.reducer.state_dict()['memory'].values():
        assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


@pytest.mark.parametrize('nesterov', [False, True])
@pytest.mark.parametrize('make', [MomentumCorrection, Residual])
def test_fused_and_plain_train_the_same_parameters(make, nesterov):
    def trained():
        named = parameters()
        optimizer = wrap(named, dgc.deep_gradient_compression(
            0.05, memory=make(dtype='bfloat16'), values='int8', indices='packed',
        ), momentum=0.9, nesterov=nesterov)  # fmt: skip
        train(optimizer, named, 6)
        return values(named), optimizer.reducer.state_dict()

    fused = trained()
    with ops.unfused():
        plainly = trained()
    assert all(map(torch.equal, fused[0], plainly[0]))
    assert_same(fused[1], plainly[1])


@pytest.mark.parametrize(('saved', 'loaded'), [('float32', 'bfloat16'), ('bfloat16', 'float32')])
def test_a_checkpoint_of_the_other_type_is_converted(saved, loaded):
    named = parameters()
    optimizer = wrap(named, composition(saved), momentum=0.9)
    train(optimizer, named, 3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = parameters()
    other = wrap(others, composition(loaded), momentum=0.9)
    other.load_state_dict(torch.load(file, weights_only=True))
    before, after = (o.reducer.state_dict()['memory'] for o in (optimizer, other))
    for name, tensors in after.items():
        for buffer, tensor in tensors.items():
            assert tensor.dtype == getattr(torch, loaded)
            assert torch.equal(tensor, before[name][buffer].to(tensor.dtype))
    train(other, others, range(3, 5))


def test_ranks_states_are_added_up_in_float32():
    """bfloat16 would round 1 + 2⁻⁸ + 2⁻⁸ to 1."""
    states = []
    for value in (1.0, 2.0**-8, 2.0**-8):
        named = [('w', torch.nn.Parameter(torch.zeros(2, 2)))]
        optimizer = wrap(named, composition('bfloat16', Residual))
        optimizer.reducer.buckets[0].buffers['residual'].fill_(value)
        states.append({**optimizer.reducer.state_dict(), 'world_size': 3})
    merged = merge_states(states, 0, 1)
    total = merged['memory']['w']['residual']
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, torch.full((2, 2), (1 + 2.0**-7) / 3))


def test_a_machine_s_residuals_are_moved_to_its_first_rank():
    def worker(engine):
        named = parameters()
        parts = {'exchange': Hierarchical(AllGather(), local_size=2)}
        optimizer = wrap(named, composition('bfloat16', **parts), engine, momentum=0.9)
        for bucket in optimizer.reducer.buckets:
            for flat in bucket.buffers.values():
                flat.fill_(1.0)
        train(optimizer, named, 2, engine.rank)
        return values(named)

    first, second = dgc.simulate(2, worker)
    assert all(map(torch.equal, first, second))


def test_ranks_with_other_types_do_not_train_together():
    def worker(engine):
        with pytest.raises(HandshakeError, match='differ in the composition'):
            wrap(parameters(), composition(('float32', 'bfloat16')[engine.rank]), engine)

    dgc.simulate(2, worker)


@pytest.mark.parametrize('make', [Residual, MomentumCorrection, FirstMoment])
def test_a_type_is_a_name_or_torch_s_and_others_are_refused(make):
    assert make(dtype=torch.bfloat16).dtype == 'bfloat16'
    assert make(dtype=torch.float32).dtype == 'float32'
    for wrong in (torch.float16, 'fp16', 'half', 16):
        with pytest.raises(ValueError, match="one of \\['float32', 'bfloat16'\\], got"):
            make(dtype=wrong)
