"""Whole messages, over every pair of codings, and every buffer that is none."""

import math
import struct
import time
from itertools import product

import pytest
import torch
from dgc_helpers import bucket_of
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.codec import HEADER, INDICES, MAGIC, VALUES, VERSION, Codec, CodecError
from dgc.codec.message import layout
from dgc.memory import Residual
from dgc.sparse import Sparse, difference, nothing

TYPES = list(product(VALUES, INDICES))
every_type = pytest.mark.parametrize(('values', 'indices'), TYPES)
# The most that is rounded off: of each value, and of the largest of the message.
OF_ITSELF = {'fp32': 0.0, 'fp16': 2.0**-11, 'bf16': 2.0**-8, 'int8': 0.0, 'int4': 0.0}
# float16 holds 2^-24 of its scale, and the largest value lies above 2^13 of it.
OF_LARGEST = {'fp32': 0.0, 'fp16': 2.0**-37, 'bf16': 2.0**-37, 'int8': 0.5 / 127, 'int4': 0.5 / 7}
FLOAT_MAX = torch.finfo(torch.float32).max


def message(elements: dict[int, float], numel: int) -> Sparse:
    """The elements in the order of their indices."""
    ordered = dict(sorted(elements.items()))
    return Sparse(
        torch.tensor(list(ordered.values()), dtype=torch.float32),
        torch.tensor(list(ordered), dtype=torch.int64),
        numel,
    )


def messages(low: float, high: float):
    """Messages of up to 20 of 50 elements, whose magnitudes lie in a range."""
    magnitudes = st.floats(low, high, width=32)
    elements = st.one_of(magnitudes, magnitudes.map(lambda value: -value), st.just(0.0))
    return st.dictionaries(st.integers(0, 49), elements, max_size=20).map(
        lambda elements: message(elements, 50)
    )


ANY = st.one_of(messages(2.0**-10, 2.0**10), messages(2.0**-126, FLOAT_MAX))


@every_type
@settings(deadline=None, max_examples=60)
@given(sparse=ANY)
def test_indices_come_back_exactly_and_values_as_their_coding_rounds(values, indices, sparse):
    codec = Codec(values, indices)
    encoded = codec.encode(sparse)
    decoded = codec.decode(encoded)
    assert len(encoded) == codec.capacity(50, len(sparse.values))
    assert decoded.numel == 50
    assert torch.equal(decoded.indices, sparse.indices)
    assert decoded.values.isfinite().all()
    largest = float(sparse.values.abs().max()) if len(sparse.values) else 0.0
    bound = (OF_ITSELF[values] * sparse.values.abs()).double()
    bound = bound.clamp(min=OF_LARGEST[values] * largest * (1 + 1e-4))
    bound = bound if values == 'fp32' else bound.clamp(min=2.0**-127)
    assert ((decoded.values.double() - sparse.values.double()).abs() <= bound).all()


@every_type
@settings(deadline=None, max_examples=60)
@given(sparse=ANY)
def test_what_arrives_and_what_was_rounded_off_is_all_there_was_bit_for_bit(
    values, indices, sparse
):
    """A rounded value is zero or within a factor of two: the difference is exact (Sterbenz)."""
    codec = Codec(values, indices)
    delivered = codec.decode(codec.encode(sparse))
    kept = difference(sparse, delivered).to_dense()
    assert torch.equal(delivered.add_to(kept), sparse.to_dense())


@every_type
@pytest.mark.parametrize(
    'value', [1e-38, 1e-30, 1e-8, 1.0, 65504.0, 65520.0, 1e20, 1e38, FLOAT_MAX]
)
def test_one_value_of_any_size_arrives_to_the_last_place_and_never_as_infinity(
    values, indices, value
):
    value = float(torch.tensor(value))
    sparse = message({3: -value, 7: value}, 9)
    decoded = Codec(values, indices).decode(Codec(values, indices).encode(sparse))
    assert decoded.values.isfinite().all()
    # Alone, a value is its block's largest; but the steps of a block are at least 2^-126.
    rounding, floor = (2.0**-22, 2.0**-127) if values.startswith('int') else (OF_ITSELF[values], 0)
    assert decoded.values.tolist() == pytest.approx([-value, value], rel=rounding, abs=floor)


@every_type
def test_the_length_is_known_before(values, indices):
    codec = Codec(values, indices)
    for count in (0, 1, 3, 8):
        bare = 32 + VALUES[values].capacity(count) + INDICES[indices].capacity(100, count)
        assert bare <= codec.capacity(100, count) < bare + 8
        assert codec.capacity(100, count) % 8 == 0
        sparse = message(dict.fromkeys(range(count), 1.0), 100)
        assert len(codec.encode(sparse)) == codec.capacity(100, count)


@every_type
@given(numel=st.integers(0, 2**31 - 1), k=st.integers(0, 10_000))
def test_a_message_of_fewer_elements_fits_where_more_do(values, indices, numel, k):
    codec = Codec(values, indices)
    assert codec.capacity(numel, k // 2) <= codec.capacity(numel, k)
    assert codec.capacity(numel, max(k - 1, 0)) <= codec.capacity(numel, k)


@every_type
def test_an_empty_message_is_legal(values, indices):
    codec = Codec(values, indices)
    for numel in (0, 5):
        assert codec.decode(codec.encode(nothing(numel))).to_dense().tolist() == [0.0] * numel


@every_type
def test_padding_behind_a_message_is_ignored(values, indices):
    codec = Codec(values, indices)
    sparse = message({1: -2.0, 2: 7.0, 4: 7.0}, 6)
    encoded = codec.encode(sparse)
    padded = torch.cat([encoded, torch.full((40,), 255, dtype=torch.uint8)])
    assert torch.equal(codec.decode(padded).to_dense(), codec.decode(encoded).to_dense())


@every_type
def test_a_message_is_read_wherever_it_begins_in_a_buffer(values, indices):
    codec = Codec(values, indices)
    sparse = message({1: -7.0, 4: 7.0}, 6)
    for offset in range(1, 9):
        shifted = torch.cat([torch.zeros(offset, dtype=torch.uint8), codec.encode(sparse)])
        assert torch.equal(codec.decode(shifted[offset:]).to_dense(), sparse.to_dense())


@every_type
def test_the_receivers_types_need_not_be_the_senders(values, indices):
    decoded = Codec().decode(Codec(values, indices).encode(message({1: 7.0}, 4)))
    assert decoded.to_dense().tolist() == [0, 7, 0, 0]


@every_type
def test_a_nan_arrives_as_one(values, indices):
    """It is how a worker whose gradient is not finite stops the others."""
    codec = Codec(values, indices)
    decoded = codec.decode(codec.encode(message({0: math.nan}, 3)))
    assert decoded.indices.tolist() == [0]
    assert decoded.values.isnan().all()


def test_bytes_are_those_of_the_description():
    """A change of these is a new version of the format."""
    raw = Codec('int4', 'packed').encode(message({1: 7.0, 4: -3.5, 5: 1.0}, 10))
    assert raw.numpy().tobytes() == (
        b'DGC\x02\x04\x02\0\0'
        + struct.pack('<qqq', 10, 3, 40)
        + bytes.fromhex('cd00 0000803f c701')
    )
    assert VERSION == 2


@pytest.mark.parametrize('values', ['fp16', 'bf16', 'int8', 'int4'])
def test_a_tiny_value_beside_a_huge_one_is_kept_until_it_arrives(values):
    """Without the memory's help it would be selected, rounded to zero and lost again for ever."""
    codec, numel = Codec(values, 'packed'), 2
    kept, arrived = torch.tensor([1e6, 1e-9]), torch.zeros(numel)
    for _ in range(12):
        sparse = Sparse(kept.clone(), torch.arange(numel), numel)
        kept.zero_()
        delivered = codec.decode(codec.encode(sparse))
        difference(sparse, delivered).add_to(kept)
        delivered.add_to(arrived)
    assert arrived.tolist() == pytest.approx([1e6, 1e-9], rel=1e-6)
    assert kept[1].abs() < 1e-12


def test_restoring_gives_the_rounding_back_to_the_memory():
    codec, memory = Codec('fp16', 'int32'), Residual()
    bucket = bucket_of(torch.tensor([1 + 2.0**-12, 0.0]), memory.buffers)
    sparse = message({0: 1 + 2.0**-12}, 2)
    memory.restore(bucket, difference(sparse, codec.decode(codec.encode(sparse))))
    assert bucket.buffers['residual'].tolist() == [2.0**-12, 0]


class TestWhatIsNotWritten:
    def test_int32_never_wraps(self):
        """pytorch#51871. No such tensor is made here."""
        codec = Codec('fp32', 'int32')
        assert codec.capacity(2**31 - 1, 1) == 40
        with pytest.raises(ValueError, match='2147483648 elements cannot be numbered with int32'):
            codec.capacity(2**31, 1)
        with pytest.raises(ValueError, match='cannot be numbered with int32'):
            codec.encode(message({2**31: 1.0}, 2**31 + 1))

    @pytest.mark.parametrize('indices', ['int64', 'packed'])
    def test_the_others_number_what_int32_cannot(self, indices):
        codec = Codec('fp32', indices)
        decoded = codec.decode(codec.encode(message({0: 1.0, 2**40 - 1: 1.0}, 2**40)))
        assert decoded.indices.tolist() == [0, 2**40 - 1]

    def test_a_dense_message(self):
        with pytest.raises(ValueError, match='all-reduce it instead'):
            Codec().encode(Sparse(torch.ones(2), None, 2))

    @every_type
    @pytest.mark.parametrize('bad', [[4, 1], [1, 1], [-1, 2], [2, 6], [0, 2**40]], ids=str)
    def test_indices_out_of_order_or_out_of_range(self, values, indices, bad):
        with pytest.raises(ValueError, match='must ascend, each once, within its 6 elements'):
            Codec(values, indices).encode(Sparse(torch.ones(2), torch.tensor(bad), 6))

    @pytest.mark.parametrize(('values', 'indices'), [('fp8', 'int32'), ('fp16', 'int16')])
    def test_unknown_types(self, values, indices):
        with pytest.raises(ValueError, match=r"'int4'.*'packed'"):
            Codec(values, indices)


def header(**changes) -> bytes:
    """Of a message of one of six elements in fp32 and int64: 32 + 8 + 4 bytes, and 4 of padding."""
    fields = {'magic': MAGIC, 'values': 0, 'indices': 0, 'numel': 6, 'count': 1, 'length': 48}
    return HEADER.pack(*(fields | changes).values())


def decode(raw: bytes) -> Sparse:
    buffer = torch.frombuffer(bytearray(raw or b'\0'), dtype=torch.uint8)
    return Codec().decode(buffer[: len(raw)])


def body(index: int, value: float = 2.5) -> bytes:
    return struct.pack('<qf4x', index, value)


class TestRefusals:
    def test_the_header_of_these_tests_is_sound(self):
        assert HEADER.size == 32
        assert decode(header() + body(5)).to_dense().tolist() == [0, 0, 0, 0, 0, 2.5]

    @pytest.mark.parametrize(
        ('changes', 'complaint'),
        [
            ({'magic': b'\x80\x02}q'}, 'not a message of this version'),
            ({'magic': b'DGC\x00'}, 'not a message of this version'),
            ({'magic': b'DGC\x01'}, 'not a message of this version'),
            ({'magic': MAGIC[:3] + bytes([MAGIC[3] + 1])}, 'not a message of this version'),
            ({'values': len(VALUES)}, 'unknown codings 5 and 0'),
            ({'indices': 200}, 'unknown codings 0 and 200'),
            ({'count': 7}, '7 of 6 elements'),
            ({'count': -1}, '-1 of 6 elements'),
            ({'numel': -6, 'count': 0}, '0 of -6 elements'),
            ({'indices': 1, 'numel': 2**31, 'length': 40}, 'numbered with int32'),
            ({'length': 40}, 'need 48 bytes, the header says 40, the message has 48'),
            ({'length': -1}, 'the header says -1'),
            ({'count': 2}, 'need 56 bytes, the header says 48, the message has 48'),
            ({'count': 2, 'length': 56}, 'need 56 bytes, the header says 56, the message has 48'),
            ({'count': 2**61, 'numel': 2**62}, 'elements need'),
            ({'count': 2**61, 'numel': 2**62, 'indices': 2}, 'elements need'),
        ],
        ids=str,
    )
    def test_a_header_that_makes_no_sense(self, changes, complaint):
        with pytest.raises(CodecError, match=complaint):
            decode(header(**changes) + body(5))

    @pytest.mark.parametrize('index', [-1, 6, 2**62])
    def test_an_index_out_of_range(self, index):
        with pytest.raises(CodecError, match='outside the 6 elements'):
            decode(header() + body(index))

    @pytest.mark.parametrize('indices', ['int64', 'int32'])
    @pytest.mark.parametrize('bad', [[4, 1], [1, 1]], ids=str)
    def test_indices_that_do_not_ascend(self, indices, bad):
        raw = Codec('fp32', indices).encode(message({1: 1.0, 4: 1.0}, 6)).numpy().tobytes()
        kind = {'int64': '<qq', 'int32': '<ii'}[indices]
        damaged = raw[:32] + struct.pack(kind, *bad) + raw[32 + struct.calcsize(kind) :]
        with pytest.raises(CodecError, match='do not ascend'):
            decode(damaged)

    def test_packed_indices_that_do_not_ascend_or_lie_outside(self):
        """1, 4, 5 of 10 with one low bit each, and high parts 0, 2, 2."""
        encoded = Codec('fp32', 'packed').encode(message({1: 1.0, 4: 1.0, 5: 1.0}, 10))
        for first_byte, second_byte in [(0xCB, 0), (0xCF, 0), (0x4D, 4)]:  # 1 5 4, 1 5 5, 1 4 11
            encoded[32], encoded[33] = first_byte, second_byte
            with pytest.raises(CodecError, match='do not ascend, or lie outside the 10'):
                Codec().decode(encoded)

    @every_type
    def test_every_cut(self, values, indices):
        codec = Codec(values, indices)
        whole = codec.encode(message({1: 1.0, 2: 2.0}, 4))
        for length in range(len(whole)):
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
            Codec().decode(foreign)

    def test_no_claim_costs_time_or_memory(self):
        """A hundred bytes that speak of 2^62 elements; a tensor of them could not be made."""
        started = time.perf_counter()
        for (values, indices), count in product(TYPES, (0, 1, 2**20, 2**40, 2**62)):
            codes = {'values': VALUES[values].code, 'indices': INDICES[indices].code}
            place = layout(VALUES[values], INDICES[indices], 2**62, count)
            claims = {**codes, 'numel': 2**62, 'count': count, 'length': place.length}
            try:
                found = decode(header(**claims).ljust(100, b'\0'))
            except (CodecError, struct.error):
                continue
            assert found.numel == 2**62 and len(found.indices) == count <= 1
        assert time.perf_counter() - started < 5


def forged(values: str, indices: str, numel: int, count: int, rest: bytes) -> bytes:
    """A sound header of such a message, and any bytes as its sections."""
    place = layout(VALUES[values], INDICES[indices], numel, count)
    codes = VALUES[values].code, INDICES[indices].code
    return HEADER.pack(MAGIC, *codes, numel, count, place.length) + rest.ljust(
        place.length - HEADER.size, b'\0'
    )


def encoded(draw) -> bytes:
    values, indices = draw(st.sampled_from(TYPES))
    return Codec(values, indices).encode(draw(ANY)).numpy().tobytes()


@st.composite
def cut(draw) -> bytes:
    raw = encoded(draw)
    return raw[: draw(st.integers(0, len(raw)))]


@st.composite
def flipped(draw) -> bytes:
    raw = bytearray(encoded(draw))
    for bit in draw(st.lists(st.integers(0, 8 * len(raw) - 1), min_size=1, max_size=4)):
        raw[bit // 8] ^= 1 << bit % 8
    return bytes(raw)


@st.composite
def spliced(draw) -> bytes:
    """The beginning of one message and the end of another."""
    one, other = encoded(draw), encoded(draw)
    return one[: draw(st.integers(0, len(one)))] + other[draw(st.integers(0, len(other))) :]


@st.composite
def with_any_sections(draw) -> bytes:
    values, indices = draw(st.sampled_from(TYPES))
    numel = draw(st.one_of(st.integers(0, 60), st.integers(0, 2**63 - 1)))
    return forged(
        values, indices, numel, min(draw(st.integers(0, 20)), numel), draw(st.binary(max_size=100))
    )


@st.composite
def with_any_header(draw) -> bytes:
    numbers = st.one_of(st.integers(-2, 60), st.integers(-(2**63), 2**63 - 1))
    codes = st.integers(0, 6)
    fields = [draw(codes), draw(codes), draw(numbers), draw(numbers), draw(numbers)]
    return HEADER.pack(MAGIC, *fields) + draw(st.binary(max_size=100))


BUFFERS = {
    'cut': cut(),
    'flipped': flipped(),
    'spliced': spliced(),
    'any sections': with_any_sections(),
    'any header': with_any_header(),
    'random': st.binary(max_size=200),
    'random after the magic': st.binary(max_size=200).map(lambda rest: MAGIC + rest),
}


@pytest.mark.parametrize('buffers', BUFFERS.values(), ids=BUFFERS)
@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_a_damaged_buffer_is_refused_or_is_a_message(buffers, data):
    try:
        decoded = decode(data.draw(buffers))
    except CodecError as error:
        assert '\n' not in str(error)
        return
    indices = decoded.indices.tolist()
    assert len(decoded.values) == len(indices) <= decoded.numel
    assert indices == sorted(set(indices))
    assert not indices or (indices[0] >= 0 and indices[-1] < decoded.numel)
    assert not decoded.values.isinf().any()
