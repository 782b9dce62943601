"""The C++ kernels against their plain references: the same bits, for every memory and type."""

import itertools
import logging
import math

import pytest
import torch
from dgc_helpers import MISFITS, bucket_of, exact, parameters, wrap
from hypothesis import given, settings
from hypothesis import strategies as st

import dgc
from dgc import ops
from dgc.codec import Codec, CodecError, elias_fano
from dgc.compressors import SampledTopK, TopK
from dgc.corrected import Corrected
from dgc.memory import MomentumCorrection, Residual
from dgc.ops import Update, build, native, reference
from dgc.sparse import Sparse

CPU = torch.device('cpu')
native_only = pytest.mark.skipif(
    not ops.is_native(CPU), reason='the kernels are not compiled (python -m dgc.ops.build)'
)
RULES = {
    'plain': lambda gradient: Update([gradient]),
    'momentum': lambda gradient: Update([gradient], momentum(gradient), 0.9),
    'nesterov': lambda gradient: Update([gradient], momentum(gradient), 0.9, nesterov=True),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (0, 1, 15, 511, 512, 513, 5000, 100_003)  # blocks of 512, and ranges for two threads
every = pytest.mark.parametrize(
    ('rule', 'dtype', 'numel'), [*itertools.product(RULES, DTYPES, SIZES)]
)


@pytest.fixture
def threads_set():
    """Sets torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def momentum(gradient):
    return random(gradient.numel(), 3)


def random(numel: int, seed: int) -> torch.Tensor:
    """Heavy-tailed, with some exact zeros."""
    draw = torch.randn(numel, generator=torch.Generator().manual_seed(seed)).pow(3)
    return draw * (draw.abs() > 1e-3)


def setting(rule, dtype, numel):
    """What was kept, and an update, made anew at each call."""
    return random(numel, 1), RULES[rule](random(numel, 2).to(dtype))


def narrow(rule, dtype, numel):
    """``setting``, with a memory in bfloat16 that is rounded by two keys of 32 bits."""
    kept, update = setting(rule, dtype, numel)
    u = None if update.momentum_buffer is None else update.momentum_buffer.bfloat16()
    return kept.bfloat16(), update._replace(momentum_buffer=u, rounding=(0xDEADBEEF, 77))


def thresholds(corrected):
    """None, a few, half and all of the elements lie above; and some lie on it."""
    if not corrected.numel():
        return [1.0]
    magnitudes = corrected.abs()
    few = magnitudes.topk(max(corrected.numel() // 100, 1)).values[-1]
    return [torch.inf, float(few), float(magnitudes.median()), 1e-45, 0.0]


def same_bits(one, other):
    assert one.dtype == other.dtype
    word = {2: torch.int16, 4: torch.int32}[one.dtype.itemsize]
    return torch.equal(one.view(word), other.view(word))


def assert_same(one, other):
    assert one.total == other.total
    assert torch.equal(one.indices, other.indices)
    assert same_bits(one.values, other.values)


@native_only
class TestAccumulate:
    @every
    @pytest.mark.parametrize('threads', [1, 2])
    def test_it_is_the_reference_bit_for_bit(self, rule, dtype, numel, threads, threads_set):
        threads_set(threads)
        corrected, update = setting(rule, dtype, numel)
        reference.accumulate(corrected, update, torch.inf, 0)
        for number, threshold in enumerate(thresholds(corrected), threads):
            limit = (7, numel)[number % 2]  # one and two threads meet both at every threshold
            (plain, by_plain), (fast, by_fast) = (setting(rule, dtype, numel) for _ in '12')
            expected = reference.accumulate(plain, by_plain, threshold, limit)
            assert_same(native.accumulate(fast, by_fast, threshold, limit), expected)
            assert same_bits(fast, plain)
            if by_plain.momentum_buffer is not None:
                assert same_bits(by_fast.momentum_buffer, by_plain.momentum_buffer)

    @every
    def test_a_sample_is_what_will_be_there(self, rule, dtype, numel):
        positions = torch.arange(0, numel, 3).flip(0)
        kept, update = setting(rule, dtype, numel)
        before = kept.clone()
        sample = native.sample(kept, update, positions)
        assert same_bits(sample, reference.sample(*setting(rule, dtype, numel), positions))
        assert same_bits(kept, before)
        reference.accumulate(kept, update, torch.inf, 0)
        assert same_bits(sample, kept[positions].abs())

    @pytest.mark.parametrize('dtype', DTYPES)
    def test_a_gradient_need_not_be_contiguous(self, dtype):
        gradient = random(2000, 2).to(dtype)[::2]
        plain, fast = random(1000, 1), random(1000, 1)
        expected = reference.accumulate(plain, Update([gradient]), 0.5, 1000)
        assert_same(native.accumulate(fast, Update([gradient]), 0.5, 1000), expected)
        assert_same(native.collect(gradient.float()[::2], 0.5, 9),
                    reference.collect(gradient.float()[::2], 0.5, 9))  # fmt: skip

    @pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
    def test_every_number_of_16_bits_is_read_as_it_is(self, dtype):
        gradient = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        gradient = gradient[gradient.isfinite()]
        kept = torch.zeros(len(gradient))
        native.accumulate(kept, Update([gradient]), torch.inf, 0)
        assert torch.equal(kept, gradient.float())

    def test_infinities_are_found_and_nans_are_not_lost(self):
        kept, gradient = torch.zeros(1000), torch.zeros(1000)
        gradient[17], gradient[900] = torch.inf, torch.nan
        assert reference.accumulate(kept.clone(), Update([gradient]), 1.0, 10).total == 2
        found = native.accumulate(kept, Update([gradient]), 1.0, 10)
        assert found.indices.tolist() == [17, 900]
        assert kept[17].isinf()
        assert kept[900].isnan()

    @every
    @pytest.mark.parametrize('threads', [1, 2])
    def test_a_gradient_may_come_in_pieces(self, rule, dtype, numel, threads, threads_set):
        threads_set(threads)
        positions = torch.arange(0, numel, 3).flip(0)
        (plain, by_plain), (fast, by_fast) = (setting(rule, dtype, numel) for _ in '12')
        by_fast = by_fast._replace(gradients=cut(by_fast.gradient))
        expected = reference.sample(plain, by_plain, positions)
        assert same_bits(native.sample(fast, by_fast, positions), expected)
        assert torch.equal(by_fast.gradient, by_plain.gradient)
        expected = reference.accumulate(plain, by_plain, 0.5, 7)
        assert_same(native.accumulate(fast, by_fast, 0.5, 7), expected)
        assert same_bits(fast, plain)

    @every
    def test_a_memory_in_bfloat16_is_rounded_as_by_the_reference(
        self, rule, dtype, numel, threads_set
    ):
        positions = torch.arange(0, numel, 3).flip(0)
        for threads, beside in itertools.product((1, 2), (False, True)):
            threads_set(threads)
            (plain, by_plain), (fast, by_fast) = (narrow(rule, dtype, numel) for _ in '12')
            by_fast = by_fast._replace(gradients=cut(by_fast.gradient))
            expected = reference.sample(plain, by_plain, positions)
            assert same_bits(native.sample(fast, by_fast, positions), expected)
            held = [fast] if rule == 'plain' else [fast, by_fast.momentum_buffer]
            if beside:
                held = [torch.zeros_like(each) for each in held]
                by_fast = by_fast._replace(into=held)
            expected = reference.accumulate(plain, by_plain, 0.5, 7)
            assert_same(native.accumulate(fast, by_fast, 0.5, 7), expected)
            results = [plain] if rule == 'plain' else [plain, by_plain.momentum_buffer]
            assert all(map(same_bits, held, results))
            assert_same(native.collect(plain, 0.5, 9), reference.collect(plain, 0.5, 9))
            assert torch.equal(native.sample(fast, by_fast, positions),
                               reference.sample(fast, by_fast, positions))  # fmt: skip

    @pytest.mark.parametrize('rule', RULES)
    def test_what_is_not_finite_stays_so_in_bfloat16(self, rule):
        def make():
            kept, update = narrow(rule, torch.float32, 1000)
            words = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7F800000], dtype=torch.int32)
            update.gradient[[17, 18, 513, 999]] = words.view(torch.float32)
            return kept, update

        found = native.accumulate(*make(), torch.inf, 9)
        assert found.indices.tolist() == [17, 18, 513, 999]
        assert not found.values.isfinite().any()
        kept, update = make()
        into = [torch.zeros_like(kept)] * (1 if rule == 'plain' else 2)
        assert not native.accumulate(kept, update._replace(into=into), torch.inf, 9).is_finite

    def test_a_memory_in_bfloat16_needs_keys_and_buffers_of_one_type(self):
        kept, update = narrow('momentum', torch.float32, 9)
        wide = update._replace(momentum_buffer=update.momentum_buffer.float())
        wrong = [(kept, update._replace(rounding=None)), (kept, wide)]
        wrong += [(kept.float(), update._replace(momentum_buffer=wide.momentum_buffer))]
        wrong += [(kept, update._replace(into=[torch.zeros(9), torch.zeros(9)]))]
        for case in wrong:
            with pytest.raises(RuntimeError, match='dgc: '):
                native.accumulate(*case, 1.0, 9)

    @pytest.mark.parametrize(('kept', 'update'), MISFITS)
    def test_what_does_not_fit_is_refused(self, kept, update):
        with pytest.raises(RuntimeError, match='dgc: '):
            native.accumulate(kept, update, 1.0, 1)
        with pytest.raises(RuntimeError, match='dgc: '):
            native.sample(kept, update, torch.tensor([0]))

    @pytest.mark.parametrize('position', [-1, 3, 2**40])
    def test_a_position_outside_is_refused(self, position):
        with pytest.raises(RuntimeError, match='position lies outside'):
            native.sample(torch.zeros(3), Update([torch.zeros(3)]), torch.tensor([position]))


def cut(flat: torch.Tensor) -> list[torch.Tensor]:
    """Pieces of it, each of its own memory; some end inside a block, and some are empty."""
    ends = sorted({0, 3, 17, 1000, len(flat) // 2, len(flat)} & set(range(len(flat) + 1)))
    sizes = [end - begin for begin, end in itertools.pairwise(ends)]
    return [piece.clone() for piece in flat.split([0, *sizes[:2], 0, *sizes[2:], 0])]


@native_only
class TestSpread:
    def parts(self, numel, seed=0):
        """Three messages with many indices in common, of which one is empty."""
        draw = torch.Generator().manual_seed(seed)
        few = [torch.randperm(numel, generator=draw)[: numel // 2].sort().values for _ in '12']
        indices = [*few, torch.empty(0, dtype=torch.int64)]
        return [Sparse(torch.randn(len(i), generator=draw), i, numel) for i in indices]

    @pytest.mark.parametrize('dtype', DTYPES)
    @pytest.mark.parametrize('numel', SIZES[1:])
    @pytest.mark.parametrize('threads', [1, 2])
    def test_it_is_the_reference_bit_for_bit(self, dtype, numel, threads, threads_set):
        threads_set(threads)
        fast, plain = (cut(torch.full((numel,), 7.0, dtype=dtype)) for _ in '12')
        native.spread(fast, self.parts(numel), 1 / 3)
        reference.spread(plain, self.parts(numel), 1 / 3)
        whole = [torch.full((numel,), 7.0)]
        reference.spread(whole, self.parts(numel), 1 / 3)
        assert same_bits(torch.cat(fast).float(), torch.cat(plain).float())
        assert same_bits(torch.cat(plain).float(), whole[0].to(dtype).float())

    def test_special_numbers_arrive_as_they_are(self):
        special = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 3e38, torch.inf, -torch.inf, torch.nan])
        indices = torch.arange(len(special))
        parts = [Sparse(each, indices, 8) for each in (special, special.flip(0), special)]
        fast, plain = (torch.ones(8).split([3, 5]) for _ in '12')
        native.spread(fast, parts, 0.5)
        reference.spread(plain, parts, 0.5)
        one, other = torch.cat(fast), torch.cat(plain)
        assert torch.equal(one.isnan(), other.isnan())
        assert same_bits(one.nan_to_num(7.0), other.nan_to_num(7.0))

    @pytest.mark.parametrize(
        ('pieces', 'part'),
        [
            ([torch.zeros(3)], Sparse(torch.zeros(1), torch.tensor([3]), 3)),
            ([torch.zeros(3)], Sparse(torch.zeros(1), torch.tensor([-1]), 3)),
            ([torch.zeros(3)], Sparse(torch.zeros(2), torch.tensor([1]), 3)),
            ([torch.zeros(3)], Sparse(torch.zeros(1).double(), torch.tensor([1]), 3)),
            ([torch.zeros(3, 1)], Sparse(torch.zeros(1), torch.tensor([1]), 3)),
            ([torch.zeros(2), torch.zeros(4)[::2]], Sparse(torch.zeros(1), torch.tensor([1]), 3)),
        ],
    )
    def test_what_does_not_fit_is_refused(self, pieces, part):
        with pytest.raises(RuntimeError, match='dgc: '):
            native.spread(pieces, [part], 1.0)


def misaligned(tensor):
    """The same elements, one byte behind a multiple of their size."""
    raw = bytearray(1) + bytearray(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    flat = torch.frombuffer(raw, dtype=tensor.dtype, offset=1)
    assert flat.data_ptr() % tensor.dtype.itemsize
    return flat.view(tensor.shape)


@native_only
class TestMisaligned:
    """docs/failures.md, row 24: torch.frombuffer(offset=1) reached loads of typed elements."""

    @pytest.mark.parametrize('rule', RULES)
    @pytest.mark.parametrize('dtype', DTYPES)
    def test_what_is_read_is_copied_first(self, rule, dtype):
        numel = 700
        (plain, by_plain), (fast, by_fast) = (setting(rule, dtype, numel) for _ in '12')
        by_fast = by_fast._replace(gradients=[misaligned(by_fast.gradient)])
        positions = torch.arange(0, numel, 3)
        expected = reference.sample(plain, by_plain, positions)
        assert same_bits(native.sample(fast, by_fast, misaligned(positions)), expected)
        expected = reference.accumulate(plain, by_plain, 0.5, 9)
        assert_same(native.accumulate(fast, by_fast, 0.5, 9), expected)
        assert same_bits(fast, plain)
        assert_same(native.collect(misaligned(plain), 0.5, 9), reference.collect(plain, 0.5, 9))
        assert native.finite([misaligned(by_plain.gradient)])

    def test_messages_are_copied_first(self):
        values, indices = random(300, 1), torch.arange(0, 900, 3)
        pieces, expected = ([torch.ones(900)] for _ in '12')
        part = Sparse(misaligned(values), misaligned(indices), 900)
        native.spread(pieces, [part], 0.5)
        reference.spread(expected, [Sparse(values, indices, 900)], 0.5)
        assert same_bits(pieces[0], expected[0])
        into = [misaligned(torch.ones(900))]
        native.spread(into, [part], 0.5)
        assert same_bits(into[0].clone(), expected[0])
        assert native.in_order(misaligned(indices), 900)
        for codec in (Codec('int4', 'packed'), Codec('fp16', 'int32'), Codec('qsgd8', 'int64')):
            message = codec.encode(part, 3)
            assert torch.equal(message, codec.encode(Sparse(values, indices, 900), 3))
            found, wanted = codec.decode(misaligned_bytes(message)), codec.decode(message)
            assert torch.equal(found.values, wanted.values)
            assert torch.equal(found.indices, wanted.indices)

    def test_what_is_written_is_refused_by_name(self):
        kept, update = torch.zeros(9), Update([torch.ones(9)], torch.zeros(9), 0.9)
        with pytest.raises(RuntimeError, match="a memory's buffer does not lie at a multiple"):
            native.accumulate(misaligned(kept), update, 1.0, 1)
        with pytest.raises(RuntimeError, match="a memory's buffer does not lie at a multiple"):
            update = update._replace(momentum_buffer=misaligned(kept))
            native.accumulate(kept, update, 1.0, 1)
        group = {'lr': 0.1, 'momentum': 0.9, 'weight_decay': 0.1, 'nesterov': False}
        with pytest.raises(RuntimeError, match='a tensor of a step does not lie at a multiple'):
            native.step(misaligned(kept), kept, kept.clone(), group)

    @pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize('make', [exact, dgc.dense])
    def test_training_with_misaligned_parameters_and_gradients(self, make, dtype):
        def trained(place):
            named = [(name, torch.nn.Parameter(place(p.detach())))
                     for name, p in parameters(dtype=dtype)]  # fmt: skip
            optimizer = wrap(named, make(), weight_decay=0.1)
            for step in range(2):
                draw = torch.Generator().manual_seed(step)
                for _, parameter in named:
                    shape = parameter.shape
                    parameter.grad = place(torch.randn(shape, generator=draw).to(dtype))
                optimizer.step()
            return [p.detach().clone() for _, p in named]

        assert all(map(torch.equal, trained(misaligned), trained(torch.clone)))


@native_only
@pytest.mark.parametrize(
    ('call', 'match'),
    [
        (lambda: torch.ops.dgc.qsgd_encode(torch.ones(3), -1, 8, 1, 2), 'cannot be written'),
        (lambda: torch.ops.dgc.qsgd_encode(torch.ones(3), 64, 8, 1, 2), 'cannot be written'),
        (
            lambda: torch.ops.dgc.elias_fano_encode(torch.tensor([0]), 2**63 - 1, 0),
            'cannot be packed',
        ),
    ],
)
def test_what_the_sanitizers_found_is_refused(call, match):
    """docs/failures.md, row 24: shifts by a negative number of bits, sums that overflowed."""
    with pytest.raises(RuntimeError, match=match):
        call()


@native_only
def test_a_block_may_be_as_large_as_an_integer():
    """docs/failures.md, row 24."""
    one = torch.ops.dgc.linear_encode(torch.ones(3), 8, 2**63 - 1)
    assert torch.equal(one, torch.ops.dgc.linear_encode(torch.ones(3), 8, 3))


def misaligned_bytes(message):
    """Its bytes, from an odd address on."""
    flat = torch.frombuffer(bytearray(1) + bytearray(message.numpy().tobytes()), dtype=torch.uint8)
    return flat[1:]


@native_only
@pytest.mark.parametrize('dtype', [*DTYPES, torch.float64])
@pytest.mark.parametrize('numel', [1, 7, 8191, 8192, 8193, 100_003])
def test_what_is_not_finite_is_found_wherever_it_is(dtype, numel):
    draw = torch.randn(numel, generator=torch.Generator().manual_seed(0)).to(dtype)
    most = torch.finfo(dtype).max
    for place in (0, numel // 2, numel - 1):
        for value in (torch.inf, -torch.inf, torch.nan, most, -most, -0.0):
            tensor = draw.clone()
            tensor[place] = value
            assert reference.finite([tensor]) == math.isfinite(value)
            assert native.finite([draw, tensor, draw]) == math.isfinite(value)


@native_only
class TestSelection:
    """The whole selection, fused and plain, step after step."""

    @pytest.mark.parametrize('dtype', DTYPES)
    @pytest.mark.parametrize('nesterov', [False, True])
    @pytest.mark.parametrize('make', [Residual, MomentumCorrection], ids=lambda make: make.__name__)
    @pytest.mark.parametrize(
        'compressor',
        [
            SampledTopK,
            TopK,
            lambda: SampledTopK(strided_sample=False),
            lambda: SampledTopK(resample=False),
        ],
        ids=['sampled', 'top-k', 'uniform', 'no resample'],
    )
    def test_both_send_and_keep_the_same(self, make, nesterov, dtype, compressor):
        def steps():
            memory, chooser = make(), compressor()
            bucket = bucket_of(
                torch.zeros(60_000, dtype=dtype), memory.buffers, 0.9, nesterov, density=0.01
            )
            for step in range(4):
                bucket.gradient.copy_(random(60_000, step))
                sent = memory.select(bucket, chooser)
                yield sent, {name: flat.clone() for name, flat in bucket.buffers.items()}

        fused = list(steps())
        with ops.unfused():
            plainly = list(steps())
        for (sent, kept), (plain, plainly_kept) in zip(fused, plainly, strict=True):
            assert torch.equal(sent.indices, plain.indices)
            assert same_bits(sent.values, plain.values)
            for name, flat in kept.items():
                assert same_bits(flat, plainly_kept[name])

    def test_an_overfull_list_means_a_search_at_a_higher_threshold(self):
        """The sample sees small elements alone, and nearly all elements are large."""
        corrected = torch.rand(200_000, generator=torch.Generator().manual_seed(0)) + 1
        chooser = SampledTopK(sample_ratio=0.01)
        chooser._positions = lambda corrected, stride, draw: torch.arange(1000)
        corrected[:1000] = 0.5
        sent = chooser.compress(corrected, 0.001)
        assert torch.equal(sent.indices, TopK().compress(corrected, 0.001).indices)


@native_only
class TestEliasFano:
    @settings(deadline=None, max_examples=200)
    @given(st.data())
    def test_the_bytes_are_those_of_the_reference(self, data):
        numel = data.draw(st.integers(1, 2**62) | st.integers(1, 5000))
        indices = sorted(data.draw(st.sets(st.integers(0, numel - 1), max_size=200)))
        indices = torch.tensor(indices, dtype=torch.int64)
        section = elias_fano.encode(indices, numel)
        assert torch.equal(section, elias_fano.encode_plainly(indices, numel))
        assert torch.equal(elias_fano.decode(section, numel, len(indices)), indices)

    @settings(deadline=None, max_examples=200)
    @given(st.integers(1, 3000), st.integers(0, 60), st.integers(0, 2**32))
    def test_damaged_bytes_mean_the_same_to_both(self, numel, count, seed):
        count = min(count, numel)
        draw = torch.Generator().manual_seed(seed)
        size = (elias_fano.length(numel, count),)
        section = torch.randint(256, size, generator=draw).to(torch.uint8)
        results = []
        for decode in (elias_fano.decode, elias_fano.decode_plainly):
            try:
                results.append(decode(section, numel, count).tolist())
            except CodecError as error:
                results.append(str(error))
        assert results[0] == results[1]


def test_without_the_library_the_reference_works_and_that_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(build, 'find', lambda: (None, []))
    monkeypatch.setenv('DGC_BUILD', '0')
    ops._kernels.cache_clear()
    try:
        with caplog.at_level(logging.INFO, 'dgc'):
            for _ in range(3):
                assert ops.kernels(CPU) is reference
                assert not ops.is_fused(torch.float32, CPU)
        assert [record.levelname for record in caplog.records] == ['WARNING']
        assert 'python -m dgc.ops.build' in caplog.text
    finally:
        ops._kernels.cache_clear()


def test_what_is_materialized_is_the_memory_s_own_storage():
    residual = torch.tensor([1.0, 2.0])
    corrected = Corrected(residual, Update([torch.tensor([3.0, -2.0])])).materialize()
    assert corrected.data_ptr() == residual.data_ptr()
    assert corrected.tolist() == [4.0, 0.0]
