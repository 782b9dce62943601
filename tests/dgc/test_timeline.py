"""When buckets come through, by hand."""

from __future__ import annotations

import random

import pytest

from dgc.timeline import BucketTimes, Span, end, spans


class TestTimeline:
    """Backward pass of 10 s unless said otherwise."""

    def test_what_is_hidden_costs_nothing(self):
        assert end([BucketTimes(ready=4.0, processor=0.0, moving=0.0, network=5.0)], 10.0) == 10.0

    def test_the_last_bucket_has_nothing_to_hide_behind(self):
        assert end([BucketTimes(10.0, 0.0, 0.0, 5.0)], 10.0) == 15.0

    def test_the_processors_part_delays_the_backward_pass(self):
        assert end([BucketTimes(4.0, 2.0, 1.0, 3.0)], 10.0) == 13.0

    def test_a_bucket_waits_for_the_one_before_it(self):
        buckets = [BucketTimes(2.0, 0.0, 0.0, 20.0), BucketTimes(5.0, 0.0, 0.0, 4.0)]
        assert end(buckets, 10.0) == 26.0

    def test_a_bucket_is_late_by_what_others_took_of_the_core(self):
        buckets = [BucketTimes(2.0, 1.0, 0.5, 0.0), BucketTimes(10.0, 2.0, 0.0, 4.0)]
        assert end(buckets, 10.0) == 10 + 1.5 + 2 + 4

    def test_nothing_to_send(self):
        assert end([], 10.0) == 10.0

    def test_spans_say_when_each_enters_leaves_and_is_back(self):
        buckets = [BucketTimes(2.0, 1.0, 0.5, 4.0), BucketTimes(3.0, 2.0, 0.0, 1.0)]
        assert spans(buckets, 2.0) == [Span(2.0, 3.0, 3.0, 7.0), Span(7.0, 9.0, 9.0, 10.0)]
        assert end(buckets, 2.0) == pytest.approx(10.0)

    def test_beside_the_backward_pass_a_path_has_half_of_the_core(self):
        # From 2 to 6, when it has done its 2 s of work, and the backward pass 2 of its last 8.
        path = BucketTimes(2.0, 2.0, 0.0, 1.0)
        assert spans([path], 10.0) == [Span(2.0, 6.0, 6.0, 7.0)]
        assert end([path], 10.0) == 12.0

    def test_the_rest_of_a_path_has_all_of_it(self):
        # To 4 each has its 1 s of work done, which is all that the backward pass has left.
        path = BucketTimes(2.0, 4.0, 0.0, 1.0)
        assert spans([path], 3.0) == [Span(2.0, 7.0, 7.0, 8.0)]
        assert end([path], 3.0) == 8.0


class TestPipeline:
    """A message is made while the one before it travels."""

    # Gradients complete at 2, 3 and 4; the backward pass ends at 2.
    BUCKETS = (
        BucketTimes(2.0, 1.0, 0.5, 4.0),
        BucketTimes(3.0, 2.0, 0.0, 1.0),
        BucketTimes(4.0, 0.5, 0.0, 3.0),
    )

    def test_by_hand(self):
        # 1: made from 2 to 3, on the link to 7. It has taken 1.5 s of the core.
        # 2: could begin at 3 + 1.5, and does, since 1 is made; made at 6.5, on the link 7 to 8.
        # 3: could begin at 4 + 3.5; made from 7.5 to 8, on the link 8 to 11.
        assert spans(self.BUCKETS, 2.0, pipelined=True) == [
            Span(2.0, 3.0, 3.0, 7.0),
            Span(4.5, 6.5, 7.0, 8.0),
            Span(7.5, 8.0, 8.0, 11.0),
        ]
        assert end(self.BUCKETS, 2.0, pipelined=True) == 11.0

    def test_without_it_each_waits_for_the_bucket_before(self):
        assert spans(self.BUCKETS, 2.0) == [
            Span(2.0, 3.0, 3.0, 7.0),
            Span(7.0, 9.0, 9.0, 10.0),
            Span(10.0, 10.5, 10.5, 13.5),
        ]

    def test_messages_are_made_one_after_another(self):
        buckets = [BucketTimes(1.0, 5.0, 0.0, 0.0), BucketTimes(1.0, 2.0, 0.0, 0.0)]
        assert [(each.begin, each.made) for each in spans(buckets, 1.0, pipelined=True)] == [
            (1.0, 6.0),
            (6.0, 8.0),
        ]

    def test_beside_the_backward_pass_both_share_the_core(self):
        # 1: made from 0 to 4 with half of the core, then 10 s on the link. 2: ready at 1 + 2, begun
        # at 4, made at 8; then the backward pass, of 10 + 4 s, goes on beside the link.
        buckets = [BucketTimes(0.0, 2.0, 0.0, 10.0), BucketTimes(1.0, 2.0, 0.0, 1.0)]
        assert spans(buckets, 10.0, pipelined=True) == [
            Span(0.0, 4.0, 4.0, 14.0),
            Span(4.0, 8.0, 14.0, 15.0),
        ]

    def test_it_never_ends_later(self):
        for seed in range(200):
            draw = random.Random(seed)
            buckets = [BucketTimes(*(draw.uniform(0, 3) for _ in range(4))) for _ in range(5)]
            assert end(buckets, 4.0, pipelined=True) <= end(buckets, 4.0) * (1 + 1e-12)
