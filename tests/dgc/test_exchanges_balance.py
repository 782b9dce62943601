"""Ok-Topk's balance: the same list of elements in equal parts, where that takes fewer bytes."""

from __future__ import annotations

import pytest
import torch
from dgc_helpers import bucket_of
from hypothesis import given, settings
from hypothesis import strategies as st

import dgc
from dgc.codec import Codec
from dgc.exchanges import Context
from dgc.exchanges.balance import Balance, overlaps, spans
from dgc.exchanges.truncation import Truncation
from dgc.sparse import Sparse, empty_message

CODEC = Codec('fp32', 'int32')
counts_of_ranks = st.lists(st.integers(0, 25), min_size=1, max_size=6)


def parts_of(counts) -> list[Sparse]:
    """By rank: ``counts[rank]`` elements, in ascending regions."""
    numel, total = 2 * sum(counts) + 3, torch.arange(1.0, sum(counts) + 1)
    parts = zip(total.split(list(counts)), (2 * total.long()).split(list(counts)), strict=True)
    return [Sparse(values, indices, numel) for values, indices in parts]


def evened_out(counts, codec=CODEC):
    """By rank: the part afterwards, the quantization error, and bytes and messages sent."""
    parts = parts_of(counts)

    def worker(engine):
        numel = parts[0].numel
        bucket, truncation = bucket_of(torch.zeros(numel)), Truncation(empty_message(numel))
        context = Context(bucket, max(*counts, 1), codec, engine)
        mine = Balance(counts).even_out(parts[engine.rank], context, truncation)
        everywhere = Sparse(torch.zeros(numel), torch.arange(numel), numel)
        error = truncation.exchanged([everywhere], everywhere).error
        return mine, error.to_dense(), engine.traffic.sent, engine.traffic.messages

    return dgc.simulate(len(counts), worker)


@settings(deadline=None, max_examples=50)
@given(counts_of_ranks)
def test_the_list_stays_the_same_in_parts_that_are_even_or_unchanged(counts):
    results = evened_out(counts)
    for kind in ('values', 'indices'):
        before = torch.cat([getattr(part, kind) for part in parts_of(counts)])
        assert torch.equal(torch.cat([getattr(r[0], kind) for r in results]), before)
    lengths = [len(mine.values) for mine, *_ in results]
    if any(messages for *_, messages in results):
        assert max(lengths) - min(lengths) <= 1
    else:
        assert lengths == counts
    assert Balance(counts).largest == max(*lengths, 1)
    assert not any(error.any() for _, error, *_ in results)


@settings(deadline=None, max_examples=50)
@given(counts_of_ranks)
def test_moving_never_takes_more_than_it_saves(counts):
    """In elements of the busiest rank: what it moves, and P-1 parts of the gather."""
    size = len(counts)
    moved = [
        (sent - 32 * messages) // 8 for *_, sent, messages in evened_out(counts)
    ]  # a header of 32 bytes, and 8 an element
    largest = Balance(counts).largest
    assert max(moved) + (size - 1) * largest <= (size - 1) * max(*counts, 1)


@pytest.mark.parametrize(
    ('counts', 'lengths'),
    [
        ([9, 0, 0], [3, 3, 3]),
        ([0, 0, 9], [3, 3, 3]),
        ([12, 0, 0, 1], [3, 3, 3, 4]),
        ([3, 3, 2], [3, 3, 2]),  # 3 is the longest in any case
        ([4, 3, 2], [3, 3, 3]),  # both move 1 to the next at once, which saves 2
        ([4, 4, 1], [4, 4, 1]),  # the second would have to move 2
        ([0, 0, 0], [0, 0, 0]),
        ([5], [5]),
        ([0, 1], [0, 1]),
    ],
)
def test_examples(counts, lengths):
    results = evened_out(counts)
    assert [len(mine.values) for mine, *_ in results] == lengths
    moves = lengths != counts
    assert any(messages for *_, messages in results) == moves


def test_the_quantization_error_stays_with_the_rank_that_sent_the_message():
    counts = [30, 0, 0]
    results = evened_out(counts, Codec('int8', 'int32'))
    before = parts_of(counts)[0].to_dense()
    after = sum(mine.to_dense() for mine, *_ in results)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after + results[0][1], before)
    assert not results[1][1].any()
    assert not results[2][1].any()


def test_spans_follow_one_another():
    assert spans([2, 0, 3]) == [(0, 2), (2, 2), (2, 5)]


def test_overlaps_are_what_two_divisions_have_in_common():
    assert overlaps([(0, 2), (2, 2), (2, 6)], [(0, 3), (3, 3), (3, 6)]) == {
        (0, 0): (0, 2),
        (2, 0): (2, 3),
        (2, 2): (3, 6),
    }
