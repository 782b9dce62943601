"""Whole messages, over every pair of codings."""

import math
import struct

import pytest
import torch
from codec_helpers import (
    ANY,
    FLOAT_MAX,
    LISTED,
    TYPES,
    eights,
    every_listed_type,
    every_type,
    fitting,
    message,
)
from dgc_helpers import bucket_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dgc.codec import INDICES, VALUES, VERSION, Codec
from dgc.memory import Residual
from dgc.sparse import Sparse, difference, empty_message

# The most that is rounded off: of each value, and of the largest of the message.
OF_ITSELF = {
    'fp16': 2.0**-11,
    'bf16': 2.0**-8,
    '2bit': 2.0**-8,
    'natural': 1.0,  # up to twice the value
}
OF_LARGEST = {
    'fp32': 0.0,
    # float16 holds 2^-24 of its scale, and the largest value lies above 2^13 of it.
    'fp16': 2.0**-37,
    'bf16': 2.0**-37,
    'int8': 0.5 / 127,
    'int4': 0.5 / 7,
    # The mean lies between zero and the largest.
    'sign': 1.0,
    # To the next level on either side.
    'qsgd8': 1 / 127,
    'qsgd4': 1 / 7,
    'qsgd2': 1.0,
    # A group's mean lies between its least and its largest.
    '2bit': 1.0,
    # Half of the largest gap, 4 to 6 of 6, and 8 to 16 of 16.
    'fp4': 1 / 6,
    'fp4e3': 4 / 16,
    'ternary': 1.0,
    'natural': 2.0**-124,  # the least power, below which a value becomes 0 or this
}
STOCHASTIC = ('qsgd8', 'qsgd4', 'qsgd2', 'ternary', 'natural')
# Rounded values that are zero or within a factor of two of the value.
LISTED_CODECS = [Codec(values, indices) for values, indices in LISTED]
NEAREST = ('fp32', 'fp16', 'bf16', 'int8', 'int4')


@pytest.mark.parametrize('values', VALUES)
@settings(deadline=None, max_examples=40)
@given(sparse=ANY)
def test_a_message_arrives_and_what_was_rounded_off_is_all_there_was(values, sparse):
    """With every index coding: drawing a message takes longer than to write and to read it."""
    for indices in INDICES:
        as_written = fitting(sparse, indices)
        delivered = written_and_read(Codec(values, indices), as_written)
        assert_rounded(as_written.values, delivered.values, values, indices)
        assert_all_is_delivered_or_kept(as_written, delivered, values, indices)


def written_and_read(codec: Codec, sparse: Sparse) -> Sparse:
    """A message after its way; its indices come back exactly, and its length was known."""
    encoded = codec.encode(sparse)
    decoded = codec.decode(encoded)
    assert len(encoded) == codec.capacity(50, len(sparse.values)), codec
    assert decoded.numel == 50
    assert decoded.is_dense == sparse.is_dense == (codec.indices == 'none')
    assert decoded.is_dense or torch.equal(decoded.indices, sparse.indices), codec
    return decoded


def assert_rounded(given: Tensor, decoded: Tensor, values: str, indices: str) -> None:
    """Values are rounded as their coding says."""
    assert decoded.isfinite().all(), (values, indices)
    largest = float(given.abs().max()) if len(given) else 0.0
    bound = (OF_ITSELF.get(values, 0.0) * given.abs()).double()
    bound = bound.clamp(min=OF_LARGEST[values] * largest * (1 + 1e-4))
    floor = 2.0**-126 if values in STOCHASTIC else 2.0**-127
    bound = bound if values == 'fp32' else bound.clamp(min=floor)
    assert ((decoded.double() - given.double()).abs() <= bound).all(), (values, indices)


def assert_all_is_delivered_or_kept(
    sparse: Sparse, delivered: Sparse, values: str, indices: str
) -> None:
    """Bit for bit, where a rounded value is zero or within a factor of two (Sterbenz).

    The residual of another coding is at most twice the largest value, and rounded by 2^-24 of
    itself. The sum is taken in float64: in float32 it could round up to infinity beside the largest
    number.
    """
    residual = difference(sparse, delivered)
    if values in NEAREST:
        kept = residual.to_dense()
        assert torch.equal(delivered.add_to(kept), sparse.to_dense()), (values, indices)
    else:
        largest = float(sparse.values.abs().max()) if len(sparse.values) else 0.0
        lost = delivered.values.double() + residual.values.double() - sparse.values.double()
        assert (lost.abs() <= 2 * largest * 2.0**-24).all(), (values, indices)


@pytest.mark.parametrize(('values', 'indices'), [t for t in TYPES if t != ('sign', 'none')])
def test_one_value_of_any_size_arrives_to_the_last_place_and_never_as_infinity(values, indices):
    for value in [1e-38, 1e-30, 1e-8, 1.0, 65504.0, 65520.0, 1e20, 1e38, FLOAT_MAX]:
        value = float(torch.tensor(value))
        sparse = fitting(message({3: -value, 7: value}, 9), indices)
        decoded = Codec(values, indices).decode(Codec(values, indices).encode(sparse))
        assert decoded.values.isfinite().all(), value
        # Alone, a value is its block's largest; but the steps of a block are at least 2^-126.
        rounding, floor = OF_ITSELF.get(values, 2.0**-22), 0.0
        if values.startswith(('int', 'fp4', 'qsgd', 'ternary')):
            floor = 2.0**-126 if values in STOCHASTIC else 2.0**-127
        arrived = decoded.to_dense()[[3, 7]]
        assert arrived.tolist() == pytest.approx([-value, value], rel=rounding, abs=floor)


@every_type
def test_the_length_is_known_before(values, indices):
    codec = Codec(values, indices)
    for count in (0, 1, 3, 8):
        numel = count if indices == 'none' else 100
        bare = 32 + VALUES[values].capacity(count) + INDICES[indices].capacity(numel, count)
        assert bare <= codec.capacity(numel, count) < bare + 8
        assert codec.capacity(numel, count) % 8 == 0
        sparse = fitting(message(dict.fromkeys(range(count), 1.0), numel), indices)
        assert len(codec.encode(sparse)) == codec.capacity(numel, count)


@given(numel=st.integers(0, 2**31 - 1), k=st.integers(0, 10_000))
def test_a_message_of_fewer_elements_fits_where_more_do(numel, k):
    for codec in LISTED_CODECS:
        assert codec.capacity(numel, k // 2) <= codec.capacity(numel, k), codec
        assert codec.capacity(numel, max(k - 1, 0)) <= codec.capacity(numel, k), codec


@every_type
def test_an_empty_message_is_legal(values, indices):
    codec = Codec(values, indices)
    for numel in (0, 5):
        sparse = fitting(empty_message(numel), indices)
        assert codec.decode(codec.encode(sparse)).to_dense().tolist() == [0.0] * numel


@every_type
def test_padding_behind_a_message_is_ignored(values, indices):
    codec = Codec(values, indices)
    sparse = fitting(message({1: -2.0, 2: 7.0, 4: 7.0}, 6), indices)
    encoded = codec.encode(sparse)
    padded = torch.cat([encoded, torch.full((40,), 255, dtype=torch.uint8)])
    assert torch.equal(codec.decode(padded).to_dense(), codec.decode(encoded).to_dense())


@every_type
def test_a_message_is_read_wherever_it_begins_in_a_buffer(values, indices):
    codec = Codec(values, indices)
    sparse = eights(indices)
    for offset in range(1, 9):
        shifted = torch.cat([torch.zeros(offset, dtype=torch.uint8), codec.encode(sparse)])
        assert torch.equal(codec.decode(shifted[offset:]).to_dense(), sparse.to_dense())


@every_type
def test_the_receivers_types_need_not_be_the_senders(values, indices):
    sparse = eights(indices)
    decoded = Codec().decode(Codec(values, indices).encode(sparse))
    assert torch.equal(decoded.to_dense(), sparse.to_dense())


@every_type
def test_a_nan_arrives_as_one(values, indices):
    """It is how a worker whose gradient is not finite stops the others."""
    codec = Codec(values, indices)
    decoded = codec.decode(codec.encode(fitting(message({0: math.nan}, 3), indices)))
    assert decoded.is_dense or decoded.indices.tolist() == [0]
    assert decoded.values[0].isnan()


@every_type
def test_the_seed_alone_decides_what_a_stochastic_coding_writes(values, indices):
    codec = Codec(values, indices)
    draw = torch.Generator().manual_seed(0)
    sparse = Sparse(torch.randn(500, generator=draw), torch.arange(500), 500)
    sparse = fitting(sparse, indices)
    torch.manual_seed(1)
    one, other = codec.encode(sparse, seed=5), codec.encode(sparse, seed=6)
    torch.manual_seed(2)
    assert torch.equal(codec.encode(sparse, seed=5), one)
    assert torch.equal(one, other) == (values not in STOCHASTIC)
    assert torch.equal(codec.encode(sparse), codec.encode(sparse, seed=0))
    assert codec.decode(one).values.isfinite().all()


def test_bytes_are_those_of_the_description():
    """A change of these is a new version of the format."""
    dense = Codec('sign', 'none').encode(Sparse(torch.tensor([7.0, -3.5, 1.5]), None, 3))
    assert dense.numpy().tobytes() == (
        b'DGC\x02\x05\x03\0\0' + struct.pack('<qqqf', 3, 3, 40, 4.0) + b'\x05\0\0\0'
    )
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
    memory.add_error(bucket, difference(sparse, codec.decode(codec.encode(sparse))))
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

    @pytest.mark.parametrize('indices', [name for name in INDICES if name != 'none'])
    def test_a_dense_message_with_indices(self, indices):
        with pytest.raises(ValueError, match=r"all-reduce it instead, .* indices='none'"):
            Codec('fp32', indices).encode(Sparse(torch.ones(2), None, 2))

    @pytest.mark.parametrize(
        'sparse',
        [
            message({1: 1.0}, 2),
            message({0: 1.0, 1: 1.0}, 2),
            empty_message(2),
            empty_message(0),
        ],
        ids=['one of two', 'two of two', 'none of two', 'none of none'],
    )
    def test_a_sparse_message_without_indices(self, sparse):
        with pytest.raises(ValueError, match=r"indices='none'.*: choose indices='packed'"):
            Codec('fp32', 'none').encode(sparse)

    def test_a_dense_message_that_lacks_elements(self):
        codec = Codec('fp32', 'none')
        with pytest.raises(ValueError, match='2 of 3 elements cannot be written'):
            codec.encode(Sparse(torch.ones(2), None, 3))
        with pytest.raises(ValueError, match='2 of 3 elements cannot be written'):
            codec.capacity(3, 2)
        assert codec.capacity(3, 3) == 48

    @every_listed_type
    def test_indices_out_of_order_or_out_of_range(self, values, indices):
        for bad in [[4, 1], [1, 1], [-1, 2], [2, 6], [0, 2**40]]:
            with pytest.raises(ValueError, match='must ascend, each once, within its 6 elements'):
                Codec(values, indices).encode(Sparse(torch.ones(2), torch.tensor(bad), 6))

    @pytest.mark.parametrize(('values', 'indices'), [('fp8', 'int32'), ('fp16', 'int16')])
    def test_unknown_types(self, values, indices):
        with pytest.raises(ValueError, match=r"'int4'.*'packed'"):
            Codec(values, indices)
