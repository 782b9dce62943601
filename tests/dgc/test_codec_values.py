"""Value codings: what they round, what they never do, and how long they are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.codec import VALUES, CodecError
from dgc.codec.raw import pack, unpack

FLOAT_MAX = torch.finfo(torch.float32).max
every_coding = pytest.mark.parametrize('coding', VALUES.values(), ids=VALUES)
# What the numbers of a block can count to, and the length of a block.
BLOCKS = {'int8': (127, 256), 'int4': (7, 128)}
every_block_coding = pytest.mark.parametrize('name', BLOCKS)
# Those with the same numbers, rounded at random.
QSGD = {'qsgd8': (127, 512), 'qsgd4': (7, 128), 'qsgd2': (1, 64), 'ternary': (1, 512)}
# Values per scale, where a coding has more than one scale.
PER_SCALE = {name: block for name, (_, block) in (BLOCKS | QSGD).items()}
PER_SCALE |= {'sign': 4096, '2bit': 64, 'fp4': 64, 'fp4e3': 64}
every_scaled_block = pytest.mark.parametrize('name', PER_SCALE)


def there_and_back(name: str, values: torch.Tensor) -> torch.Tensor:
    coding = VALUES[name]
    return coding.decode(coding.encode(values), len(values))


def steps(name: str, values: torch.Tensor) -> torch.Tensor:
    """Each value's step: the largest magnitude of its block over what the numbers can count to."""
    top, block = (BLOCKS | QSGD)[name]
    largest = [part.abs().max().expand(len(part)) for part in values.split(block)]
    return torch.cat(largest).double() / top


def some_values(low: float, high: float, size: int = 300):
    """float32 tensors whose magnitudes lie in a range, or are zero."""
    magnitudes = st.floats(low, high, width=32)
    values = st.one_of(magnitudes, magnitudes.map(lambda value: -value), st.just(0.0))
    return st.lists(values, min_size=1, max_size=size).map(torch.tensor)


@pytest.mark.parametrize(
    'count', [0, 1, 2, 3, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 4095, 4096, 4097]
)
def test_lengths_are_the_closed_forms(count):
    expected = {
        'fp32': 4 * count,
        'fp16': 4 + 2 * count,
        'bf16': 4 + 2 * count,
        'int8': 4 * math.ceil(count / 256) + count,
        'int4': 4 * math.ceil(count / 128) + math.ceil(count / 2),
        'sign': 4 * math.ceil(count / 4096) + math.ceil(count / 8),
        'qsgd8': 4 * math.ceil(count / 512) + count,
        'qsgd4': 4 * math.ceil(count / 128) + math.ceil(count / 2),
        'qsgd2': 4 * math.ceil(count / 64) + math.ceil(count / 4),
        '2bit': 4 * math.ceil(count / 64) + math.ceil(count / 4),
        'fp4': 4 * math.ceil(count / 64) + math.ceil(count / 2),
        'fp4e3': 4 * math.ceil(count / 64) + math.ceil(count / 2),
        'ternary': 4 * math.ceil(count / 512) + math.ceil(count / 5),
        'natural': 4 + count,
    }
    assert {name: coding.capacity(count) for name, coding in VALUES.items()} == expected
    values = torch.linspace(-1, 1, count)
    for name, coding in VALUES.items():
        section = coding.encode(values)
        assert section.dtype == torch.uint8
        assert len(section) == expected[name]
        assert len(coding.decode(section, count)) == count


@every_coding
@given(st.integers(0, 10_000))
def test_fewer_values_never_take_more(coding, k):
    assert coding.capacity(max(k - 1, 0)) <= coding.capacity(k)


def test_bytes_are_those_of_the_description():
    """A change of these is a new version of the format."""
    values = torch.tensor([7.0, -3.5, 1.0])
    expected = {
        'fp32': '0000e040 000060c0 0000803f',
        'fp16': '00008039 0077 00f3 006c',  # 2^-12, then 28672, -14336, 4096
        'bf16': '00008039 e046 60c6 8045',
        'int8': '87c3613d 7f c0 12',  # 7/127, then 127, -64, 18
        'int4': '0000803f c7 01',  # 1, then 7 and -4 in one byte, 1 in the next
        'sign': '55557540 05',  # 11.5/3, then the bits 1, 0, 1
        # Draws of 0.81, 0.20 and 0.50: up from -63.5, -3.5 and -1/2, down from 18.1 and 1/7.
        'qsgd8': '87c3613d 7f c1 12',
        'qsgd4': '0000803f d7 01',
        'qsgd2': '0000e040 01',
        '2bit': '1040 e040 13',  # 2.25 and 7; then the larger of both, the smaller with -, with +
        'fp4': '5555953f d7 02',  # 7/6, then 6, -3 and 1 of it
        'fp4e3': '0000e03e e7 04',  # 7/16, then 16, -8 and 2 of it
        'ternary': '0000e040 0e',  # 7, 0 and 0: 2 + 1·3 + 1·9
        # 4, then 4 = 2^2, -4 and 1 = 2^0: 2^3 would be 126; down from 7 with a draw above 3/4.
        'natural': '00008040 7d fd 7b',
    }
    found = {name: coding.encode(values).numpy().tobytes() for name, coding in VALUES.items()}
    assert found == {name: bytes.fromhex(text) for name, text in expected.items()}


@every_block_coding
@settings(deadline=None, max_examples=60)
@given(values=st.one_of(some_values(2.0**-10, 2.0**10), some_values(0, FLOAT_MAX)))
def test_half_a_step_of_its_block_is_the_most_that_a_value_is_rounded(name, values):
    error = (there_and_back(name, values).double() - values.double()).abs()
    # Steps are no smaller than the smallest normal number, and are rounded to 24 bits themselves.
    bound = steps(name, values).clamp(min=2.0**-126) / 2
    assert (error <= bound * (1 + 1e-4)).all()


@pytest.mark.parametrize('name', QSGD)
@settings(deadline=None, max_examples=60)
@given(
    values=st.one_of(some_values(2.0**-10, 2.0**10), some_values(0, FLOAT_MAX)),
    seed=st.integers(-(2**63), 2**64),
)
def test_a_stochastic_coding_rounds_to_a_level_beside_the_value(name, values, seed):
    coding = VALUES[name]
    decoded = coding.decode(coding.encode(values, seed), len(values))
    error = (decoded.double() - values.double()).abs()
    assert (error <= steps(name, values).clamp(min=2.0**-126) * (1 + 1e-4)).all()
    assert decoded.isfinite().all()


@every_block_coding
def test_a_block_does_not_feel_the_outlier_of_another(name):
    _, block = BLOCKS[name]
    values = torch.full((2 * block,), 1e-3)
    values[0] = 1e6
    decoded = there_and_back(name, values)
    assert decoded[1:block].tolist() == [0.0] * (block - 1)
    torch.testing.assert_close(decoded[block:], values[block:], rtol=1e-6, atol=0)


@every_coding
def test_zeros_stay_zeros(coding):
    assert (coding.decode(coding.encode(torch.zeros(5000)), 5000) == 0).all()


def test_only_a_whole_block_of_zeros_stays_zeros_in_one_bit():
    values = torch.zeros(2 * 4096 + 1)
    values[[4096, 4097]] = torch.tensor([4096.0, -8192.0])
    first, second, last = there_and_back('sign', values).split(4096)
    assert (first == 0).all() and last.tolist() == [0]
    assert second.tolist() == [3.0, -3.0] + [3.0] * 4094


@pytest.mark.parametrize('count', [1, 7, 4095, 4096, 4097, 4103])
def test_the_scale_of_signs_is_the_mean_of_the_block_however_short(count):
    values = torch.randn(count, generator=torch.Generator().manual_seed(0))
    expected = [part.abs().mean() * part.sign() for part in values.split(4096)]
    torch.testing.assert_close(there_and_back('sign', values), torch.cat(expected))


@every_scaled_block
@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_makes_its_block_nan_and_no_other(name, bad):
    block = PER_SCALE[name]
    values = torch.ones(3 * block)
    values[block + 5] = bad
    before, itself, after = there_and_back(name, values).split(block)
    assert itself.isnan().all()
    assert (before == 1).all() and (after == 1).all()


SIZES = [1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 511, 512, 513, 4095, 4096, 4097, 9000]


@every_coding
@pytest.mark.parametrize('size', SIZES)
def test_a_nan_at_any_place_arrives_at_that_place(coding, size):
    draw = torch.Generator().manual_seed(size)
    block = PER_SCALE.get(coding.name, 1)
    for place in {0, 1, size // 2, size - 2, size - 1} & set(range(size)):
        values = torch.randn(size, generator=draw)
        values[place] = math.nan
        decoded = coding.decode(coding.encode(values), size)
        assert decoded[place].isnan()
        assert not decoded.isinf().any()
        its_block = torch.arange(size) // block == place // block
        assert decoded[~its_block].isfinite().all()


@every_coding
@pytest.mark.parametrize('size', [0, *SIZES])
def test_any_number_of_values_comes_back_as_many(coding, size):
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    section = coding.encode(values, seed=3)
    decoded = coding.decode(section, size)
    assert section.dtype == torch.uint8 and len(section) == coding.capacity(size)
    assert decoded.dtype == torch.float32 and decoded.shape == (size,)
    assert decoded.isfinite().all()
    # A value never changes to the other sign.
    assert (decoded * values >= 0).all()


@pytest.mark.parametrize('name', ['fp32', 'fp16', 'bf16'])
def test_a_nan_arrives_and_leaves_the_others_alone(name):
    """It is how a worker whose gradient is not finite stops the others."""
    decoded = there_and_back(name, torch.tensor([1.0, math.nan, -2.0]))
    assert decoded.isnan().tolist() == [False, True, False]
    assert decoded[[0, 2]].tolist() == [1, -2]


@every_coding
@pytest.mark.parametrize('size', [1, 200, 600, 5000])
def test_the_largest_floats_do_not_become_infinite(coding, size):
    values = torch.full((size,), FLOAT_MAX)
    values[::2] *= -1
    decoded = coding.decode(coding.encode(values), size)
    torch.testing.assert_close(decoded, values, rtol=2.0**-8, atol=0)


@pytest.mark.parametrize('name', ['fp32', 'fp16', 'bf16'])
def test_an_infinity_arrives_as_the_largest_float(name):
    decoded = there_and_back(name, torch.tensor([1.0, math.inf, -math.inf]))
    assert decoded[0] == 1
    assert decoded[1] == -decoded[2]
    assert 2.0**15 <= decoded[1] <= FLOAT_MAX


@every_coding
@pytest.mark.parametrize('largest', [1e-45, 1e-42, 1e-39])
def test_values_too_small_to_be_normal_are_rounded_and_not_refused(coding, largest):
    values = torch.tensor([largest, -1e-45, 0.0])
    decoded = coding.decode(coding.encode(values), 3)
    bound = 2.0**-126 if coding.name in QSGD else 2.0**-127
    bound = max(bound, largest if coding.name == 'natural' else 0.0)  # up to twice the value
    assert ((decoded - values).abs() <= bound).all()
    assert torch.equal(decoded + (values - decoded), values)


def float_section(scale: float, rest: bytes) -> torch.Tensor:
    raw = torch.tensor([scale]).numpy().tobytes() + rest
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


@pytest.mark.parametrize('name', [name for name in VALUES if name != 'fp32'])
@pytest.mark.parametrize('scale', [0.0, -1.0, math.inf, -math.inf, -math.nan, math.nan])
def test_a_scale_that_is_none_is_refused(name, scale):
    section = float_section(scale, b'\x01' * (VALUES[name].capacity(2) - 4))
    if math.isnan(scale) and name in PER_SCALE:
        assert VALUES[name].decode(section, 2).isnan().all()
        return
    if scale == 0 and name in ('sign', '2bit'):
        assert (VALUES[name].decode(section, 2) == 0).all()
        return
    with pytest.raises(CodecError, match='scale'):
        VALUES[name].decode(section, 2)


@every_coding
@settings(deadline=None, max_examples=100)
@given(data=st.data(), count=st.integers(0, 300))
def test_no_bytes_decode_to_an_infinity(coding, data, count):
    raw = data.draw(st.binary(min_size=coding.capacity(count), max_size=coding.capacity(count)))
    section = torch.frombuffer(bytearray(raw or b'\0'), dtype=torch.uint8)[: len(raw)]
    try:
        decoded = coding.decode(section, count)
    except CodecError:
        return
    assert len(decoded) == count
    assert not decoded.isinf().any()


@every_coding
def test_the_result_has_storage_of_its_own(coding):
    """A gathered buffer may be used again while its values are still being added."""
    section = coding.encode(torch.ones(5))
    decoded = coding.decode(section, 5)
    section.zero_()
    assert (decoded == 1).all()


def awkward_values():
    """Values that fill blocks or do not, lie half-way, or are hardly numbers."""
    draw = torch.Generator().manual_seed(0)
    special = [0.0, -0.0, 1e-45, -1e-45, FLOAT_MAX, -FLOAT_MAX, 0.5, 1.5, 2.5, 63.5, -63.5, 3.5]
    yield torch.empty(0)
    yield torch.tensor(special)
    yield torch.tensor([*special, torch.inf, torch.nan])
    yield torch.randint(-(2**31), 2**31 - 1, (5001,), generator=draw).int().view(torch.float32)
    for count in (1, 2, 63, 65, 127, 128, 129, 255, 256, 257, 511, 513, 3001):
        yield (torch.arange(count) % 255 - 127) / 2
        yield (torch.arange(count) % 15 - 7) / 2
        for exponent in (-149, -140, -126, -20, 0, 100, 127):
            uniform = torch.rand(count, generator=draw, dtype=torch.float64) * 2 - 1
            yield (uniform * 2.0**exponent).float()


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize('name', [*BLOCKS, *QSGD])
class TestTwins:
    """The C++ against the plain reference; without a compiler, the reference against itself."""

    def test_they_write_the_same_bytes_and_read_the_same_values(self, name):
        coding = VALUES[name]
        for seed, values in enumerate(awkward_values()):
            section = coding.encode(values, seed)
            assert same_bytes(section, coding.encode_plainly(values, seed))
            ours, plain = (
                decode(section, len(values)) for decode in (coding.decode, coding.decode_plainly)
            )
            assert torch.equal(ours.isnan(), plain.isnan())
            assert same_bytes(ours.nan_to_num(7.0), plain.nan_to_num(7.0))

    @settings(max_examples=200, deadline=None)
    @given(data=st.binary(max_size=600), count=st.integers(0, 900))
    def test_they_make_the_same_of_any_bytes(self, name, data, count):
        coding = VALUES[name]
        raw = data.ljust(coding.capacity(count), b'x')[: coding.capacity(count)]
        section = torch.frombuffer(bytearray(raw) or bytearray(1), dtype=torch.uint8)[: len(raw)]
        found = []
        for decode in (coding.decode, coding.decode_plainly):
            try:
                found.append(decode(section, count).nan_to_num(7.0).tolist())
            except CodecError as error:
                found.append(str(error))
        assert found[0] == found[1]


@pytest.mark.parametrize('bits', [1, 2, 4, 8])
@pytest.mark.parametrize('count', [0, 1, 7, 8, 9, 1000])
def test_fields_fill_bytes_from_the_lowest_bit(bits, count):
    """One bit at a time goes another way on a CPU."""
    draw = torch.Generator().manual_seed(count)
    fields = torch.randint(1 << bits, (count,), generator=draw, dtype=torch.uint8)
    number = sum(field << (bits * place) for place, field in enumerate(fields.tolist()))
    packed = pack(fields, bits)
    assert packed.numpy().tobytes() == number.to_bytes(-(-count * bits // 8), 'little')
    assert torch.equal(unpack(packed, bits)[:count], fields)
