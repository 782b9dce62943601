"""Indices spread evenly over chunks: the enumerative code, its bytes, and SparseLoCo's messages."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dgc
from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec, CodecError, even
from dgc.codec.indices import INDICES
from dgc.compressors import BlockTopK
from dgc.corrected import Corrected
from dgc.exchanges import GTopK
from dgc.memory import Residual
from dgc.sparse import Sparse
from dgc.transforms import BlockLayout, ChunkLayout


def spread(numel: int, count: int, chunk: int, seed: int = 0) -> torch.Tensor:
    """Random indices, as many in each chunk as the code wants, counted one by one."""
    draw = random.Random(seed)
    held: dict[int, int] = {}
    for place in range(count):
        number = place * numel // count // chunk
        held[number] = held.get(number, 0) + 1
    found = []
    for number, many in sorted(held.items()):
        begin = number * chunk
        found += sorted(draw.sample(range(begin, min(begin + chunk, numel)), many))
    return torch.tensor(found, dtype=torch.int64)


@pytest.mark.parametrize('size', range(1, 11))
def test_each_subset_has_a_number_of_its_own_below_the_binomial(size):
    for count in range(size + 1):
        subsets = list(combinations(range(size), count))
        numbers = [even.number_of(subset, size) for subset in subsets]
        assert sorted(numbers) == list(range(math.comb(size, count)))
        for subset, number in zip(subsets, numbers, strict=True):
            assert even.subset_of(number, size, count) == list(subset)


def test_the_number_of_one_element_is_its_place():
    assert [even.number_of([place], 100) for place in range(100)] == list(range(100))


def test_bytes_are_those_of_the_description():
    """Two of 4: {2, 3} comes after one subset with two on the left and four with one."""
    assert even.encode(torch.tensor([2, 3]), 4, 4).tolist() == [5]
    # Two chunks of 3 bits each: {0, 3} of the first has 1 + number(0)·2 + number(1) = 2.
    assert even.encode(torch.tensor([0, 3, 6, 7]), 8, 4).tolist() == [2 | 5 << 3]


@pytest.mark.parametrize('make', [even.encode, even.encode_plainly])
def test_64_of_4096_take_472_bits(make):
    assert math.ceil(math.log2(math.comb(4096, 64))) == 472
    indices = spread(16 * 4096, 16 * 64, 4096)
    assert even.bits_of(4096, 64) == 472
    assert len(make(indices, 16 * 4096)) == 16 * 59


CASES = [
    (numel, count, chunk)
    for chunk in (1, 2, 3, 7, 64, 100, 777)
    for numel in (1, chunk, chunk + 1, 3 * chunk, 3 * chunk + chunk // 2 + 1)
    for count in {0, 1, numel // 3, numel // 2, numel - 1, numel}
] + [(5 * 4096 + 1234, k, 4096) for k in (1, 5, 333, 1000)]


@pytest.mark.parametrize(('numel', 'count', 'chunk'), CASES)
def test_any_number_of_any_chunk_comes_back_and_both_twins_agree(numel, count, chunk):
    indices = spread(numel, count, chunk, seed=numel + count)
    assert even.is_even(indices, numel, chunk)
    section = even.encode(indices, numel, chunk)
    assert torch.equal(section, even.encode_plainly(indices, numel, chunk))
    assert len(section) == even.length(numel, count, chunk)
    assert even.decode(section, numel, count, chunk).tolist() == indices.tolist()
    assert even.decode_plainly(section, numel, count, chunk).tolist() == indices.tolist()


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 400), st.sets(st.integers(0, 399), max_size=40), st.integers(1, 90))
def test_both_twins_know_what_is_spread_evenly(numel, chosen, chunk):
    indices = torch.tensor(sorted(i for i in chosen if i < numel), dtype=torch.int64)
    is_even = even.is_even_plainly(indices, numel, chunk)
    assert even.is_even(indices, numel, chunk) == is_even
    assert even.is_even(spread(numel, len(indices), chunk), numel, chunk)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 700), st.integers(0, 60), st.integers(1, 150), st.binary(max_size=80))
def test_damaged_bytes_mean_the_same_to_both_twins(numel, count, chunk, data):
    count = min(count, numel)
    length = even.length(numel, count, chunk)
    raw = bytearray(data.ljust(length, b'\xa7')[:length])
    section = torch.frombuffer(raw or bytearray(1), dtype=torch.uint8)[:length]
    found = []
    for decode in (even.decode, even.decode_plainly):
        try:
            found.append(decode(section, numel, count, chunk).tolist())
        except CodecError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_lengths_never_decrease_and_are_the_sum_over_the_chunks():
    for chunk in (1, 2, 5, 16):
        for numel in range(50):
            lengths = [even.stream_bits(numel, count, chunk) for count in range(numel + 1)]
            assert lengths == sorted(lengths)
            for count, bits in enumerate(lengths):
                chunks = list(even.chunks_of(numel, count, chunk))
                assert sum(held for _, _, held in chunks) == count
                assert bits == sum(even.bits_of(size, held) for _, size, held in chunks)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 2**62), st.integers(1, 2**40))
def test_a_length_takes_no_time_however_much_a_header_claims(numel, count):
    assert 0 <= even.stream_bits(numel, count) <= 12 * min(count, numel)


class TestRefusals:
    def test_indices_that_are_not_spread_evenly(self):
        uneven = Sparse(torch.ones(2), torch.tensor([0, 1]), 3 * 4096)
        with pytest.raises(ValueError, match="choose indices='packed', or BlockTopK"):
            Codec('fp32', 'even').encode(uneven)
        INDICES['packed'].write(uneven)

    def test_a_number_that_is_that_of_no_subset(self):
        codec = Codec('fp32', 'even')
        message = codec.encode(Sparse(torch.ones(2), torch.tensor([2, 3]), 4))
        message[32] = 6  # of 0 … 5
        with pytest.raises(CodecError, match='chunk 0 are none of its subsets'):
            codec.decode(message)

    @pytest.mark.parametrize('length', [0, 1, 3])
    def test_a_section_of_another_length(self, length):
        with pytest.raises(CodecError, match='do not fill'):
            even.decode(torch.zeros(length, dtype=torch.uint8), 100, 7)

    @pytest.mark.parametrize(
        'parts',
        [
            {'compressor': BlockTopK(4, BlockLayout())},
            {'compressor': BlockTopK(4, ChunkLayout(1024))},
            {'exchange': GTopK()},
        ],
    )
    def test_a_composition_that_sends_others(self, parts):
        made = {'memory': Residual(), 'compressor': BlockTopK(64, ChunkLayout())}
        made |= {'exchange': dgc.exchanges.AllGather(), 'codec': Codec('2bit', 'even')}
        dgc.Composition(**made)
        with pytest.raises(ValueError, match='equally many elements of each chunk of 4096'):
            dgc.Composition(**{**made, **parts})


def test_a_parameter_server_refuses_it():
    with pytest.raises(ValueError, match="a parameter server sends others: set indices='packed'"):
        dgc.ALGORITHMS['dgs'].make(0.01, indices='even')


@pytest.mark.parametrize('numel', [1, 63, 64, 4095, 4096, 4097, 5 * 4096, 5 * 4096 + 1000])
@pytest.mark.parametrize('k', [1, 64, 100])
def test_block_top_k_of_chunks_selects_what_the_code_can_write(numel, k):
    compressor, spec = BlockTopK(k, ChunkLayout()), BucketSpec.of_shape(numel)
    values = torch.randn(numel, generator=torch.Generator().manual_seed(k))
    sent = compressor.select(Corrected(values, spec=spec), 1.0)
    assert len(sent.values) == compressor.budget(spec, 1.0) == max(k * numel // 4096, 1)
    decoded = Codec('fp32', 'even').decode(Codec('fp32', 'even').encode(sent))
    assert torch.equal(decoded.indices, sent.indices)
    for begin in range(0, numel, 4096):
        part = values[begin : begin + 4096].abs()
        ours = sent.indices[(sent.indices >= begin) & (sent.indices < begin + 4096)] - begin
        assert set(ours.tolist()) == set(part.topk(len(ours)).indices.tolist())
        assert len(ours) == k or len(part) < 4096


def test_an_element_of_a_sparseloco_message_takes_less_than_10_bits():
    """The released code writes 12 bits of index and 2 of value. Header, scales and padding too."""
    numel = 2**20 + 5000
    composition = dgc.ALGORITHMS['sparse-loco'].make()
    spec = BucketSpec.of_shape(numel)
    sent = composition.compressor.select(
        Corrected(torch.randn(numel, generator=torch.Generator().manual_seed(0)), spec=spec), 1.0
    )
    message = composition.codec.encode(sent)
    assert 9.8 < 8 * len(message) / len(sent.values) < 9.9
    # Against float32 gradients in each of 30 steps.
    assert 6_100 < 30 * 4 * numel / len(message) < 6_300
    assert torch.equal(composition.codec.decode(message).indices, sent.indices)
