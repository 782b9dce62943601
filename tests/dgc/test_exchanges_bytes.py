"""Counted bytes, elements and messages against the closed forms, the papers' among them."""

from __future__ import annotations

import math

import pytest
import torch
from exchange_helpers import EXCHANGES, WORKERS, Case, bring_all, case_of, cases_of, worlds

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
KINDS = ('odd sizes', 'one element', 'fewer elements than workers', 'all elements')


def rounds(workers: int) -> int:
    return math.ceil(math.log2(workers))


def busiest(ended) -> int:
    """Bytes that the worker who sends most sends."""
    return max(one.sent for one in ended)


def full(workers: int, numel: int, k: int, seed: int = 0) -> Case:
    draw = torch.Generator().manual_seed(seed)
    return Case('', k, [torch.randn(numel, generator=draw) for _ in range(workers)])


def elements(nbytes: int, messages: int) -> float:
    """Numbers of 4 bytes, indices and values, in so many messages written by PLAIN."""
    return (nbytes - HEADER * messages) / 4


@pytest.mark.parametrize('row', EXACTLY)
def test_the_busiest_worker_sends_what_the_closed_form_says(row):
    make, divisor = EXACTLY[row]
    for workers in (w for w in WORKERS if w % divisor == 0):
        cases = cases_of(workers, make().selects, kinds=(*KINDS[:3], 'some empty'))
        for codec in CODECS[workers % 3 :: 3]:
            for case, ended in zip(cases, bring_all(make, cases, codec), strict=True):
                closed = make().bytes_sent(case.numel, case.k, codec, workers)
                assert busiest(ended) == closed, (workers, case.name)


@pytest.mark.parametrize('chunk', [1, 4, 7])
def test_chunks_send_what_the_closed_form_says_unless_the_last_one_is_short(chunk):
    for workers in WORKERS[1:]:
        for case in cases_of(workers, whole=True, kinds=KINDS):
            [ended] = bring_all(lambda: ChunkAllReduce(chunk), [case])
            closed = ChunkAllReduce(chunk).bytes_sent(case.numel, case.k, CODECS[0], workers)
            # Each of the two all-reduces is counted in whole bytes.
            if case.numel % chunk == 0:
                assert busiest(ended) == pytest.approx(closed, abs=1)
            assert busiest(ended) <= closed + 1


def test_as_many_chunks_are_sent_as_are_reckoned_with():
    """30 elements are three chunks of ten; 30/1001 of 101 chunks would have been rounded up."""
    [ended] = bring_all(lambda: ChunkAllReduce(10), [full(2, 1001, 30)])
    closed = ChunkAllReduce(10).bytes_sent(1001, 30, CODECS[0], 2)
    assert ended[0].total.count_nonzero() == 30
    assert busiest(ended) == pytest.approx(closed, abs=1)


@pytest.mark.parametrize(('teams', 'workers'), [(2, 4), (3, 3), (3, 9), (4, 8), (5, 5), (6, 6)])
def test_bruck_sends_at_most_what_the_closed_form_says_and_less_when_it_has_adapted(teams, workers):
    cases = [full(workers, 120, 48, seed) for seed in range(12)]
    steps = bring_all(lambda: SparDL(teams, Bruck()), cases, in_a_row=True)
    closed = SparDL(teams, Bruck()).bytes_sent(120, 48, CODECS[0], workers)
    assert busiest(steps[0]) == closed
    assert all(busiest(ended) <= closed for ended in steps)
    assert busiest(steps[-1]) < closed


def small_change(workers: int, step: int, period: int) -> int:
    """Bytes of Ok-Topk's counts, regions and histograms at a step, as the engine counts them."""
    ring = 2 * (workers - 1) / workers
    counts = 4 * (workers - 1)
    regions = round(ring * 8 * (workers - 1)) if step % (2 * period) == 0 else 0
    histograms = 4 * round(ring * 4 * 256) if step % period == 0 else 0
    return counts + regions + histograms


@pytest.mark.parametrize(
    ('workers', 'kind'),
    [(2, 'normal'), (3, 'all in one block'), (4, 'normal'), (6, 'all in one block'), (6, 'normal')],
)
def test_oktopk_sends_at_most_the_closed_form_over_a_period_of_thresholds(workers, kind):
    period = 32
    cases = [case_of(kind, workers, False, seed) for seed in range(period)]
    steps = bring_all(OkTopK, cases, PLAIN, in_a_row=True)
    numel, k = cases[0].numel, cases[0].k
    for rank in range(workers):
        sent = sum(ended[rank].sent for ended in steps)
        change = sum(small_change(workers, step, period) for step in range(period))
        assert sent - change <= period * OkTopK().bytes_sent(numel, k, PLAIN, workers)
        if k % workers == 0:  # section 3.1; without the headers of 3(P-1) messages at most
            numbers = elements(sent - change, period * 3 * (workers - 1))
            assert numbers <= period * 6 * k * (workers - 1) / workers


@pytest.mark.parametrize('workers', WORKERS[1:])
class TestElementsAndMessagesOfThePapers:
    k = 48

    def ended(self, make, workers):
        case = full(workers, 144, self.k)
        [ended] = bring_all(make, [case], PLAIN)
        return ended

    def test_all_gather_sends_2k_for_each_other_worker(self, workers):
        for one in self.ended(AllGather, workers):
            assert one.messages == workers - 1
            assert elements(one.sent, one.messages) == 2 * self.k * (workers - 1)

    @pytest.mark.parametrize('make', [GTopK, GTopKDoubling])
    def test_gtopk_sends_and_receives_4k_a_round(self, workers, make):
        ended = self.ended(make, workers)
        assert max(one.messages for one in ended) <= 2 * rounds(workers)
        both = max(one.sent + one.received for one in ended)
        most = 4 * self.k * rounds(workers)
        # Of a root's messages, as many come as go.
        assert elements(both, 2 * rounds(workers)) == most

    def test_spardl_sends_4k_less_its_own_share(self, workers):
        share = -(-self.k // workers)
        for one in self.ended(SparDL, workers):
            assert one.messages == 2 * rounds(workers)
            # In the second half a message carries many that others have written.
            written = rounds(workers) + workers - 1
            assert elements(one.sent, written) == 4 * share * (workers - 1)
            if self.k % workers == 0:
                assert elements(one.sent, written) == 4 * self.k * (workers - 1) / workers

    def test_oktopk_sends_no_more_than_two_messages_a_worker_and_the_gather(self, workers):
        for one in self.ended(OkTopK, workers):
            collectives = 2 * (workers - 1) * (1 + 4) + (workers - 1)  # bounds, histograms, counts
            assert one.messages - collectives <= 3 * (workers - 1)


@pytest.mark.parametrize(('row', 'workers'), worlds((1, 2, 4, 6)))
def test_what_is_sent_is_received(row, workers):
    """The engine counts both ends of a message."""
    cases = cases_of(workers, whole=True, kinds=('odd sizes',))
    [ended] = bring_all(EXCHANGES[row][0], cases)
    assert sum(one.sent for one in ended) == sum(one.received for one in ended)
