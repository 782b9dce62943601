"""Index codings: exact, in order, and as short as they say."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.codec import INDICES, CodecError, elias_fano
from dgc.codec.indices import Listed, in_order, in_order_plainly

LISTED = {  # 'even' takes some messages only: test_codec_even.py
    name: coding
    for name, coding in INDICES.items()
    if isinstance(coding, Listed) and name != 'even'
}
every_coding = pytest.mark.parametrize('coding', LISTED.values(), ids=LISTED)


def test_all_codings_but_none_list_indices():
    assert set(INDICES) - set(LISTED) == {'none', 'even'}


def spread(numel: int, count: int) -> list[int]:
    return [number * numel // count for number in range(count)]


# Name: numel, indices.
EDGES = {
    'nothing of nothing': (0, []),
    'nothing': (1000, []),
    'the only one': (1, [0]),
    'the first': (1000, [0]),
    'the last': (1000, [999]),
    'both ends': (1000, [0, 999]),
    'all': (100, list(range(100))),
    'all but one': (100, [*range(50), *range(51, 100)]),
    'every other one': (100, list(range(0, 100, 2))),
    'clustered at the start': (100_000, list(range(100))),
    'clustered at the end': (100_000, list(range(99_900, 100_000))),
    'two clusters': (100_000, [*range(50), *range(99_950, 100_000)]),
    'evenly spread': (100_000, spread(100_000, 100)),
    'at powers of two': (2**20 + 1, [2**power for power in range(21)]),
}
HUGE = {
    '2^40, spread': (2**40, spread(2**40, 100)),
    '2^40, both ends': (2**40, [0, 1, 2**40 - 2, 2**40 - 1]),
    '2^63 - 1, the last': (2**63 - 1, [0, 2**63 - 2]),
}
CASES = [
    pytest.param(coding, numel, indices, id=f'{coding.name}, {name}')
    for coding in LISTED.values()
    for name, (numel, indices) in (EDGES | HUGE).items()
    if numel <= coding.limit
]


@pytest.mark.parametrize(('coding', 'numel', 'indices'), CASES)
def test_indices_come_back_exactly(coding, numel, indices):
    section = coding.encode(torch.tensor(indices, dtype=torch.int64), numel)
    assert section.dtype == torch.uint8
    assert len(section) == coding.capacity(numel, len(indices))
    decoded = coding.decode(section, numel, len(indices))
    assert decoded.dtype == torch.int64
    assert decoded.tolist() == indices


@every_coding
@settings(deadline=None, max_examples=100)
@given(st.integers(1, 2**31 - 1), st.data())
def test_any_indices_come_back_exactly(coding, numel, data):
    indices = sorted(data.draw(st.sets(st.integers(0, numel - 1), max_size=60)))
    section = coding.encode(torch.tensor(indices, dtype=torch.int64), numel)
    assert coding.decode(section, numel, len(indices)).tolist() == indices


@every_coding
@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**31 - 1), st.integers(0, 10_000))
def test_fewer_indices_never_take_more(coding, numel, k):
    fits = coding.capacity(numel, k)
    assert coding.capacity(numel, 0) == 0
    assert all(coding.capacity(numel, fewer) <= fits for fewer in (k // 3, k // 2, max(k - 1, 0)))


def test_fewer_indices_never_take_more_among_all_counts_of_small_tensors():
    for numel in range(70):
        lengths = [elias_fano.length(numel, count) for count in range(numel + 1)]
        assert lengths == sorted(lengths)


@pytest.mark.parametrize(
    ('indices', 'numel', 'expected'),
    [
        ([1, 4, 5], 10, 'cd00'),  # the example of the description
        ([], 10, ''),
        ([0, 1, 2, 3], 4, '55'),  # no low bits: ones at 0 + 0, 1 + 1, 2 + 2, 3 + 3
        ([999], 1000, 'e705'),  # nine low bits 111100111, then 0 and 1 of high 1 in unary
    ],
)
def test_packed_bytes_are_those_of_the_description(indices, numel, expected):
    section = elias_fano.encode(torch.tensor(indices, dtype=torch.int64), numel)
    assert section.numpy().tobytes().hex() == expected


def test_packed_bits_follow_the_description():
    """A second, plain writer, bit by bit."""
    draw = torch.Generator().manual_seed(0)
    for numel, count in [(1, 1), (9, 3), (1000, 1), (1000, 17), (5000, 300), (300, 299)]:
        indices = torch.randperm(numel, generator=draw)[:count].sort().values
        low = (numel // (2 * count + 1)).bit_length()
        stream = 0
        for i, index in enumerate(indices.tolist()):
            stream |= (index % 2**low) << (i * low)
            stream |= 1 << (count * low + (index >> low) + i)
        length = -(-(count * low + count + (numel >> low)) // 8)
        expected = stream.to_bytes(length, 'little')
        assert elias_fano.encode(indices, numel).numpy().tobytes() == expected


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_no_other_number_of_low_bits_is_shorter(numel, count):
    shortest = min(count * (low + 1) + (numel >> low) for low in range(64))
    assert elias_fano.stream(numel, count)[1] == shortest


@pytest.mark.parametrize('numel', [10_000, 123_456, 2_359_296, 25_557_032, 138_357_544, 10**10])
def test_a_packed_index_at_one_in_a_thousand_takes_less_than_12_and_a_half_bits(numel):
    count = numel // 1000
    entropy = math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)
    bits = 8 * INDICES['packed'].capacity(numel, count)
    assert entropy / math.log(2) < bits <= 12.5 * count


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 2**62), st.floats(1e-9, 1))
def test_a_packed_index_takes_at_most_two_bits_more_than_the_logarithm(numel, ratio):
    count = math.ceil(numel * ratio)
    bits = elias_fano.stream(numel, count)[1]
    assert bits <= count * (2 + math.log2(numel / count)) * (1 + 1e-12)


@pytest.mark.parametrize('length', [0, 1, 3, 100])
def test_a_packed_section_of_another_length_is_refused(length):
    with pytest.raises(CodecError, match=f'3 packed indices of 10 do not fill {length} bytes'):
        elias_fano.decode(torch.zeros(length, dtype=torch.uint8), 10, 3)


def test_the_bits_behind_a_packed_section_are_ignored():
    section = torch.tensor([0xCD, 0xF8], dtype=torch.uint8)  # 11 bits, and five ones
    assert elias_fano.decode(section, 10, 3).tolist() == [1, 4, 5]


@pytest.mark.parametrize('ones', ['0500', 'cd02', 'ffff'])
def test_a_packed_section_with_more_or_fewer_indices_is_refused(ones):
    section = torch.frombuffer(bytearray.fromhex(ones), dtype=torch.uint8)
    with pytest.raises(CodecError, match='are not 3, as the header says'):
        elias_fano.decode(section, 10, 3)


@pytest.mark.parametrize(
    ('indices', 'ordered'),
    [
        ([], True),
        ([0], True),
        ([9], True),
        ([0, 9], True),
        ([-1], False),
        ([10], False),
        ([3, 3], False),
        ([4, 3], False),
        ([-(2**63), 2**63 - 1], False),
        ([2**63 - 1, -(2**63)], False),
        ([0, 2**62, 9], False),
    ],
)
def test_order_is_ascending_each_once_within_the_tensor(indices, ordered):
    for check in (in_order, in_order_plainly):
        assert check(torch.tensor(indices, dtype=torch.int64), 10) is ordered
