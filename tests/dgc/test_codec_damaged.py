"""Buffers that are no message: refused, whatever is wrong with them."""

import struct
import time
from itertools import product

import pytest
import torch
from codec_helpers import ANY, TYPES, every_type, fitting, message
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.codec import HEADER, INDICES, MAGIC, VALUES, Codec, CodecError
from dgc.codec.message import layout
from dgc.sparse import Sparse


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
            ({'values': 255}, 'unknown codings 255 and 0'),
            ({'indices': 200}, 'unknown codings 0 and 200'),
            ({'count': 7}, '7 of 6 elements'),
            ({'count': -1}, '-1 of 6 elements'),
            ({'numel': -6, 'count': 0}, '0 of -6 elements'),
            ({'indices': 1, 'numel': 2**31, 'length': 40}, 'numbered with int32'),
            ({'indices': 3}, '1 of 6 elements, numbered with none'),
            ({'indices': 3, 'count': 6}, 'need 56 bytes, the header says 48'),
            ({'indices': 3, 'count': 2**62, 'numel': 2**62}, 'elements need'),
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
        whole = codec.encode(fitting(message({1: 1.0, 2: 2.0}, 4), indices))
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
    return Codec(values, indices).encode(fitting(draw(ANY), indices)).numpy().tobytes()


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
    count = min(draw(st.integers(0, 20)), numel)
    numel = count if indices == 'none' else numel
    return forged(values, indices, numel, count, draw(st.binary(max_size=100)))


@st.composite
def with_any_header(draw) -> bytes:
    numbers = st.one_of(st.integers(-2, 60), st.integers(-(2**63), 2**63 - 1))
    codes = st.one_of(st.integers(0, 20), st.integers(0, 255))
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
    indices = list(range(decoded.numel)) if decoded.is_dense else decoded.indices.tolist()
    assert len(decoded.values) == len(indices) <= decoded.numel
    assert indices == sorted(set(indices))
    assert not indices or (indices[0] >= 0 and indices[-1] < decoded.numel)
    assert not decoded.values.isinf().any()
