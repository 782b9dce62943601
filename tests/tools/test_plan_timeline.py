"""The timeline of a step: the prediction for each division, and how it is drawn."""

from __future__ import annotations

from functools import partial

import pytest

import dgc
from dgc.costmodel import Calibration, Network
from dgc.planner import Plan
from dgc.timeline import BucketTimes
from tools.plan import gantt
from tools.plan.division import Division, divisions
from tools.plan.measure import Bench
from tools.plan.predict import Setting
from tools.plan.subject import of_workload

HOST = Calibration(Network(1e-5, 1e-10), Network(1e-6, 1e-10), 0.0)
ROUNDING = 1e-12  # relative: of sums of a few dozen times
PACKED = partial(dgc.deep_gradient_compression, 0.01, values='int8', indices='packed')


@pytest.fixture(scope='module')
def bench():
    return Bench(of_workload('digits', 4), [4])


class TestDivisions:
    @pytest.mark.parametrize('make', [PACKED, dgc.dense])
    def test_merged_ends_no_later_than_either_extreme(self, bench, make):
        found = divisions(bench, make, HOST, Setting(4, 1e7, 1e-4))
        assert [each.name for each in found] == ['per tensor', 'whole model', 'merged']
        apart, whole, merged = found
        # Where merged is one of them, its buckets may come in another order, to be added up.
        assert merged.end <= (1 + ROUNDING) * min(apart.end, whole.end)
        assert len(apart.bucket_times) > len(whole.bucket_times)
        names = [sorted(n for b in each.plan.buckets for n in b.names) for each in found]
        assert names[0] == names[1] == names[2]

    def test_a_slow_start_merges_all(self, bench):
        *_, slow = divisions(bench, PACKED, HOST, Setting(4, 1e9, latency=1.0))
        assert len(slow.bucket_times) == 2  # one sparse, one dense

    def test_workers_that_share_a_core_take_longer(self, bench):
        alone, shared = (
            divisions(bench, PACKED, HOST, Setting(4, 1e9, 1e-4, sharing=s))[0] for s in (1.0, 2.0)
        )
        assert shared.backward == pytest.approx(2 * alone.backward)
        assert shared.end > alone.end


class TestDrawing:
    two = Division(
        'merged', Plan([]), [BucketTimes(2.0, 1.0, 0.0, 2.0), BucketTimes(4.0, 1.0, 0.0, 2.0)],
        forward=1.0, backward=4.0, end=8.0,
    )  # fmt: skip

    def test_text_by_hand(self):
        # 0.1 s is a column of 84. The first is compressed from 2 to 4, beside the backward pass,
        # and sent until 6, so the second, ready at 5, since the core was away for 1, from 6 to 7,
        # when it has the core, and until 9: too late.
        lines = gantt.text([self.two._replace(end=8.4)]).splitlines()
        assert '100.0 ms per column' in lines[0]
        assert lines[2] == 'merged: 2 buckets, 8400.0 ms per step'
        assert lines[3] == '  backward     ' + '-' * 10 + '=' * 50
        assert lines[4] == '  compress     ' + ' ' * 20 + '1' * 20 + ' ' * 20 + '2' * 10
        assert lines[5] == '  communicate  ' + ' ' * 40 + '1' * 20 + ' ' * 10 + '2' * 15

    def test_what_is_too_short_for_a_column_has_one(self):
        assert gantt.paint([(0.0, 0.0, 'a'), (1.0, 1.001, 'b')], 10.0) == 'a         b'

    def test_a_picture_is_a_png(self, tmp_path):
        gantt.draw([self.two, self.two], 'title', tmp_path / 'timeline.png')
        assert (tmp_path / 'timeline.png').read_bytes().startswith(b'\x89PNG')
