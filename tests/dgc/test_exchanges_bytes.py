"""Counted bytes, elements and messages against the closed forms, the papers' among them."""

from __future__ import annotations

import math

import pytest
import torch
from exchange_helpers import EXCHANGES, WORLD_SIZES, Case, case_of, cases_of, run_all, worlds

from dgc.bucket_spec import BucketSpec
from dgc.codec import Codec
from dgc.exchanges import (
    AllGather,
    Bruck,
    ChunkAllReduce,
    GTopK,
    GTopKDoubling,
    OkTopK,
    SparDL,
)

CODECS = [Codec('fp32', 'int64'), Codec('fp16', 'int32'), Codec('int8', 'packed')]
PLAIN = Codec('fp32', 'int32')  # 8 bytes an element: a message has no padding
HEADER = 32  # bytes
EXACTLY = {
    'all-gather': (AllGather, 1),
    'gtopk': (GTopK, 1),
    'gtopk doubling': (GTopKDoubling, 1),
    'spardl': (SparDL, 1),
    'spardl 2 teams': (lambda: SparDL(2), 2),
    'spardl 4 teams': (lambda: SparDL(4), 4),
}
KINDS = ('odd sizes', 'one element', 'fewer elements than ranks', 'all elements')


def rounds(world_size: int) -> int:
    return math.ceil(math.log2(world_size))


def busiest(results) -> int:
    """The largest number of bytes that one rank sent."""
    return max(one.sent for one in results)


def spec_of(case: Case) -> BucketSpec:
    return BucketSpec.of_shape(1, case.numel)


def full(world_size: int, numel: int, k: int, seed: int = 0) -> Case:
    draw = torch.Generator().manual_seed(seed)
    return Case('', k, [torch.randn(numel, generator=draw) for _ in range(world_size)])


def elements(nbytes: int, messages: int) -> float:
    """Numbers of 4 bytes, indices and values, in ``messages`` messages written by PLAIN."""
    return (nbytes - HEADER * messages) / 4


@pytest.mark.parametrize('row', EXACTLY)
def test_the_busiest_rank_sends_what_the_closed_form_says(row):
    make, divisor = EXACTLY[row]
    for world_size in (w for w in WORLD_SIZES if w % divisor == 0):
        kinds = (*KINDS[:3], 'some empty')
        cases = cases_of(world_size, make().selects, kinds=kinds[world_size // divisor % 2 :: 2])
        for codec in CODECS[world_size % 3 :: 3]:
            for case, results in zip(cases, run_all(make, cases, codec), strict=True):
                closed = make().bytes_sent(spec_of(case), case.k, codec, world_size)
                assert busiest(results) == closed, (world_size, case.name)


@pytest.mark.parametrize('chunk', [1, 4, 7])
def test_chunks_send_what_the_closed_form_says_unless_the_last_one_is_short(chunk):
    for world_size in WORLD_SIZES[1:]:
        for case in cases_of(world_size, corrected=True, kinds=KINDS):
            [results] = run_all(lambda: ChunkAllReduce(chunk), [case])
            closed = ChunkAllReduce(chunk).bytes_sent(spec_of(case), case.k, CODECS[0], world_size)
            # Each of the two all-reduces is counted in whole bytes.
            if case.numel % chunk == 0:
                assert busiest(results) == pytest.approx(closed, abs=1)
            assert busiest(results) <= closed + 1


def test_the_closed_form_has_the_number_of_chunks_that_are_sent():
    """30 elements are three chunks of ten; 30/1001 of 101 chunks would have been rounded up."""
    [results] = run_all(lambda: ChunkAllReduce(10), [full(2, 1001, 30)])
    closed = ChunkAllReduce(10).bytes_sent(BucketSpec.of_shape(1001), 30, CODECS[0], 2)
    assert results[0].total.count_nonzero() == 30
    assert busiest(results) == pytest.approx(closed, abs=1)


@pytest.mark.parametrize(('teams', 'world_size'), [(2, 4), (3, 3), (3, 9), (4, 8), (5, 5), (6, 6)])
def test_bruck_sends_at_most_the_closed_form_and_less_once_it_has_adapted(teams, world_size):
    cases = [full(world_size, 120, 48, seed) for seed in range(12)]
    steps = run_all(lambda: SparDL(teams, Bruck()), cases, consecutive=True)
    closed = SparDL(teams, Bruck()).bytes_sent(BucketSpec.of_shape(120), 48, CODECS[0], world_size)
    assert busiest(steps[0]) == closed
    assert all(busiest(results) <= closed for results in steps)
    assert busiest(steps[-1]) < closed


def overhead(world_size: int, step: int, period: int) -> int:
    """Bytes of Ok-Topk's counts, regions and histograms at a step, as the engine counts them."""
    ring = 2 * (world_size - 1) / world_size
    counts = 4 * (world_size - 1)
    regions = round(ring * 8 * (world_size - 1)) if step % (2 * period) == 0 else 0
    histograms = 4 * round(ring * 4 * 256) if step % period == 0 else 0
    return counts + regions + histograms


@pytest.mark.parametrize(
    ('world_size', 'kind'),
    [(2, 'normal'), (3, 'all in one block'), (4, 'normal'), (6, 'all in one block'), (6, 'normal')],
)
def test_oktopk_sends_at_most_the_closed_form_over_a_period_of_thresholds(world_size, kind):
    period = 32
    cases = [case_of(kind, world_size, False, seed) for seed in range(period)]
    steps = run_all(OkTopK, cases, PLAIN, consecutive=True)
    spec, k = spec_of(cases[0]), cases[0].k
    for rank in range(world_size):
        sent = sum(results[rank].sent for results in steps)
        extra = sum(overhead(world_size, step, period) for step in range(period))
        assert sent - extra <= period * OkTopK().bytes_sent(spec, k, PLAIN, world_size)
        if k % world_size == 0:  # section 3.1; without the headers of 3(P-1) messages at most
            numbers = elements(sent - extra, period * 3 * (world_size - 1))
            assert numbers <= period * 6 * k * (world_size - 1) / world_size


@pytest.mark.parametrize('world_size', WORLD_SIZES[1:])
class TestElementsAndMessagesOfThePapers:
    k = 48

    def results(self, make, world_size):
        case = full(world_size, 144, self.k)
        [results] = run_all(make, [case], PLAIN)
        return results

    def test_all_gather_sends_2k_for_each_other_rank(self, world_size):
        for one in self.results(AllGather, world_size):
            assert one.messages == world_size - 1
            assert elements(one.sent, one.messages) == 2 * self.k * (world_size - 1)

    @pytest.mark.parametrize('make', [GTopK, GTopKDoubling])
    def test_gtopk_sends_and_receives_4k_a_round(self, world_size, make):
        results = self.results(make, world_size)
        assert max(one.messages for one in results) <= 2 * rounds(world_size)
        both = max(one.sent + one.received for one in results)
        most = 4 * self.k * rounds(world_size)
        # Of a root's messages, as many come as go.
        assert elements(both, 2 * rounds(world_size)) == most

    def test_spardl_sends_4k_minus_its_own_part(self, world_size):
        part = -(-self.k // world_size)
        for one in self.results(SparDL, world_size):
            assert one.messages == 2 * rounds(world_size)
            # In the second half a message carries many that others have written.
            written = rounds(world_size) + world_size - 1
            assert elements(one.sent, written) == 4 * part * (world_size - 1)
            if self.k % world_size == 0:
                assert elements(one.sent, written) == 4 * self.k * (world_size - 1) / world_size

    def test_oktopk_sends_no_more_than_two_messages_a_rank_and_the_gather(self, world_size):
        for one in self.results(OkTopK, world_size):
            # Bounds and histograms, then counts.
            collectives = 2 * (world_size - 1) * (1 + 4) + (world_size - 1)
            assert one.messages - collectives <= 3 * (world_size - 1)


@pytest.mark.parametrize(('row', 'world_size'), worlds((1, 2, 4, 6)))
def test_what_is_sent_is_received(row, world_size):
    """The engine counts both ends of a message."""
    cases = cases_of(world_size, corrected=True, kinds=('odd sizes',))
    [results] = run_all(EXCHANGES[row][0], cases)
    assert sum(one.sent for one in results) == sum(one.received for one in results)
