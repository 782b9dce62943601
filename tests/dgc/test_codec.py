import math
import struct

import pytest
import torch
from dgc_helpers import bucket_of
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.codec import HEADER, INDICES, MAGIC, VALUES, CodecError, PlainCodec
from dgc.memory import Residual
from dgc.sparse import Sparse, difference, nothing

TYPES = [(values, indices) for values in VALUES for indices in INDICES]
# Relative rounding error of half a unit in the last place, and what one element costs.
ROUNDING = {'fp32': 0.0, 'fp16': 2.0**-11, 'bf16': 2.0**-8}
BYTES = {'fp32': 4, 'fp16': 2, 'bf16': 2, 'int64': 8, 'int32': 4}
every_type = pytest.mark.parametrize(('values', 'indices'), TYPES)
FLOAT_MAX = torch.finfo(torch.float32).max


def message(elements: dict[int, float], numel: int) -> Sparse:
    return Sparse(
        torch.tensor(list(elements.values()), dtype=torch.float32),
        torch.tensor(list(elements), dtype=torch.int64),
        numel,
    )


def messages(low: float, high: float):
    """Messages of up to 20 of 50 elements, whose magnitudes lie in a range."""
    magnitudes = st.floats(low, high, width=32)
    elements = st.one_of(magnitudes, magnitudes.map(lambda value: -value), st.just(0.0))
    return st.dictionaries(st.integers(0, 49), elements, max_size=20).map(
        lambda elements: message(elements, 50)
    )


@every_type
@settings(deadline=None, max_examples=60)
@given(sparse=st.one_of(messages(2.0**-10, 2.0**10), messages(2.0**-126, FLOAT_MAX)))
def test_indices_come_back_exactly_and_values_to_the_last_place(values, indices, sparse):
    codec = PlainCodec(values, indices)
    encoded = codec.encode(sparse)
    decoded = codec.decode(encoded)
    assert len(encoded) <= codec.capacity(50, len(sparse.values))
    assert decoded.numel == 50
    assert torch.equal(decoded.indices, sparse.indices)
    assert decoded.values.isfinite().all()
    largest = float(sparse.values.abs().max()) if len(sparse.values) else 0.0
    # float16 holds 2^-24 of its scale, and the largest value lies above 2^13 of it.
    bound = torch.clamp(ROUNDING[values] * sparse.values.abs(), min=largest * 2.0**-37)
    bound = bound.clamp(min=2.0**-143) if values != 'fp32' else torch.zeros_like(bound)
    assert ((decoded.values - sparse.values).abs() <= bound).all()


@every_type
@pytest.mark.parametrize(
    'value', [1e-38, 1e-30, 1e-8, 1.0, 65504.0, 65520.0, 1e20, 1e38, FLOAT_MAX]
)
def test_one_value_of_any_size_arrives_to_the_last_place_and_never_as_infinity(
    values, indices, value
):
    value = float(torch.tensor(value))
    sparse = message({7: value, 3: -value}, 9)
    decoded = PlainCodec(values, indices).decode(PlainCodec(values, indices).encode(sparse))
    assert decoded.values.isfinite().all()
    assert decoded.values.tolist() == pytest.approx([value, -value], rel=ROUNDING[values], abs=0)


@every_type
def test_the_length_is_known_before(values, indices):
    codec = PlainCodec(values, indices)
    for count in (0, 1, 3, 8):
        bare = HEADER.size + count * (BYTES[values] + BYTES[indices])
        assert bare <= codec.capacity(100, count) < bare + 8
        assert codec.capacity(100, count) % 8 == 0
        sparse = message(dict.fromkeys(range(count), 1.0), 100)
        assert len(codec.encode(sparse)) == codec.capacity(100, count)


@every_type
def test_an_empty_message_is_legal(values, indices):
    codec = PlainCodec(values, indices)
    assert codec.decode(codec.encode(nothing(5))).to_dense().tolist() == [0.0] * 5


@every_type
def test_padding_behind_a_message_is_ignored(values, indices):
    codec = PlainCodec(values, indices)
    sparse = message({4: 0.5, 1: -2.0, 2: 8.0}, 6)
    padded = torch.cat([codec.encode(sparse), torch.full((40,), 255, dtype=torch.uint8)])
    assert torch.equal(codec.decode(padded).to_dense(), sparse.to_dense())


def test_a_message_is_read_wherever_it_begins_in_a_buffer():
    codec = PlainCodec('fp16', 'int32')
    sparse = message({4: 0.5, 1: -2.0}, 6)
    shifted = torch.cat([torch.zeros(3, dtype=torch.uint8), codec.encode(sparse)])[3:]
    assert torch.equal(codec.decode(shifted).to_dense(), sparse.to_dense())


def test_the_receivers_types_need_not_be_the_senders():
    sparse = message({1: 3.0}, 4)
    decoded = PlainCodec().decode(PlainCodec('bf16', 'int32').encode(sparse))
    assert decoded.to_dense().tolist() == [0, 3, 0, 0]


@pytest.mark.parametrize('values', ['fp16', 'bf16'])
def test_a_tiny_value_beside_a_huge_one_is_kept_until_it_arrives(values):
    """Without the memory's help it would be selected, rounded to zero and lost again for ever."""
    codec, numel = PlainCodec(values, 'int32'), 2
    kept, arrived = torch.tensor([1e6, 1e-9]), torch.zeros(numel)
    for _ in range(5):
        sparse = Sparse(kept.clone(), torch.arange(numel), numel)
        kept.zero_()
        delivered = codec.decode(codec.encode(sparse))
        difference(sparse, delivered).add_to(kept)
        delivered.add_to(arrived)
    assert arrived.tolist() == pytest.approx([1e6, 1e-9], rel=1e-6)
    assert kept[1].abs() < 1e-12


def test_restoring_gives_the_rounding_back_to_the_memory():
    codec, memory = PlainCodec('fp16', 'int32'), Residual()
    bucket = bucket_of(torch.tensor([1 + 2.0**-12, 0.0]), memory.buffers)
    sparse = message({0: 1 + 2.0**-12}, 2)
    memory.restore(bucket, difference(sparse, codec.decode(codec.encode(sparse))))
    assert bucket.buffers['residual'].tolist() == [2.0**-12, 0]


def test_a_nan_arrives_as_one():
    """It is how a worker whose gradient is not finite stops the others."""
    for values, indices in TYPES:
        codec = PlainCodec(values, indices)
        assert codec.decode(codec.encode(message({0: math.nan}, 3))).values.isnan().all()


class TestRefusals:
    def header(self, **changes) -> bytes:
        fields = {'magic': MAGIC, 'values': 0, 'indices': 0, 'numel': 6, 'count': 1, 'scale': 1.0}
        return HEADER.pack(*(fields | changes).values())

    def decode(self, raw: bytes):
        return PlainCodec().decode(torch.frombuffer(bytearray(raw), dtype=torch.uint8))

    def test_the_header_of_these_tests_is_sound(self):
        raw = self.header() + struct.pack('<qf', 5, 2.5)
        assert self.decode(raw).to_dense().tolist() == [0, 0, 0, 0, 0, 2.5]

    @pytest.mark.parametrize(
        ('changes', 'complaint'),
        [
            ({'magic': b'\x80\x02}q'}, 'not a message of this version'),
            ({'magic': b'DGC\x00'}, 'not a message of this version'),
            ({'magic': MAGIC[:3] + bytes([MAGIC[3] + 1])}, 'not a message of this version'),
            ({'values': len(VALUES)}, 'unknown types'),
            ({'indices': 200}, 'unknown types'),
            ({'count': 7}, '7 of 6 elements'),
            ({'count': -1}, '-1 of 6 elements'),
            ({'numel': -6, 'count': 0}, '0 of -6 elements'),
            ({'scale': 0.0}, 'scale 0.0'),
            ({'scale': -1.0}, 'scale -1.0'),
            ({'scale': math.inf}, 'scale inf'),
            ({'scale': math.nan}, 'scale nan'),
            ({'count': 2}, 'elements need 56 bytes, the message has 44'),
            ({'count': 2**61, 'numel': 2**62}, 'elements need'),
        ],
        ids=str,
    )
    def test_a_header_that_makes_no_sense(self, changes, complaint):
        with pytest.raises(CodecError, match=complaint):
            self.decode(self.header(**changes) + struct.pack('<qf', 5, 2.5))

    @pytest.mark.parametrize('index', [-1, 6, 2**62])
    def test_an_index_out_of_range(self, index):
        with pytest.raises(CodecError, match='outside the 6 elements'):
            self.decode(self.header() + struct.pack('<qf', index, 2.5))

    def test_every_cut(self):
        codec = PlainCodec('fp16', 'int32')
        whole = codec.encode(message({1: 1.0, 2: 2.0}, 4))
        for length in range(HEADER.size + 2 * 6):
            with pytest.raises(CodecError):
                codec.decode(whole[:length])

    @pytest.mark.parametrize(
        'foreign',
        [
            torch.zeros(64, dtype=torch.uint8),
            torch.ones(64),
            torch.zeros(8, 8, dtype=torch.uint8),
            torch.zeros(0, dtype=torch.uint8),
        ],
        ids=['zeros', 'floats', 'matrix', 'empty'],
    )
    def test_what_is_no_message_at_all(self, foreign):
        with pytest.raises(CodecError, match='not a message'):
            PlainCodec().decode(foreign)

    @settings(deadline=None, max_examples=100)
    @given(st.integers(0, 43), st.integers(0, 255))
    def test_damage_is_refused_or_stays_inside_the_tensor(self, position, byte):
        raw = bytearray(self.header() + struct.pack('<qf', 5, 2.5))
        raw[position] = byte
        try:
            decoded = self.decode(bytes(raw))
        except CodecError:
            return
        assert len(decoded.values) == len(decoded.indices) <= decoded.numel
        assert not len(decoded.indices) or 0 <= int(decoded.indices.min())
        assert not len(decoded.indices) or int(decoded.indices.max()) < decoded.numel

    def test_int32_never_wraps(self):
        """pytorch#51871. No such tensor is made here."""
        codec = PlainCodec('fp32', 'int32')
        assert codec.capacity(2**31 - 1, 1) == 40
        with pytest.raises(ValueError, match='2147483648 elements cannot be numbered with int32'):
            codec.capacity(2**31, 1)
        with pytest.raises(ValueError, match='cannot be numbered with int32'):
            codec.encode(message({2**31: 1.0}, 2**31 + 1))

    def test_int64_numbers_what_int32_cannot(self):
        codec = PlainCodec('fp32', 'int64')
        decoded = codec.decode(codec.encode(message({2**31: 1.0}, 2**31 + 1)))
        assert decoded.indices.tolist() == [2**31]

    def test_a_dense_message(self):
        with pytest.raises(ValueError, match='all-reduce it instead'):
            PlainCodec().encode(Sparse(torch.ones(2), None, 2))

    @pytest.mark.parametrize(('values', 'indices'), [('fp8', 'int32'), ('fp16', 'int16')])
    def test_unknown_types(self, values, indices):
        with pytest.raises(ValueError, match=r"'fp16'.*'int32'"):
            PlainCodec(values, indices)
