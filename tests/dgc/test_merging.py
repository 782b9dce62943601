"""Grouping neighbours: against every grouping that there is."""

from __future__ import annotations

import itertools
import random
import time

import numpy as np
import pytest
from dgc_helpers import forecast

from bench.merging import Layers, every_grouping, report
from dgc.bucket_spec import BucketSpec, ParameterSpec, Stretch
from dgc.codec import Codec
from dgc.compressors import BlockTopK, TopK
from dgc.costmodel import Line
from dgc.exchanges import AllGather, PowerSGD
from dgc.planner import Merged, PlanRequest, merging
from dgc.planner.forecast import Forecast, Route
from dgc.planner.merging import exact, greedy
from dgc.planner.timed import group_cost
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule
from dgc.timeline import BucketTimes
from dgc.transforms import BlockLayout


@pytest.mark.parametrize('pipelined', [False, True])
@pytest.mark.parametrize('seed', range(120))
def test_no_grouping_is_better_than_the_exact_one_and_the_greedy_one_is_a_grouping(seed, pipelined):
    count = 1 + seed % 10 if seed < 110 or pipelined else 12
    layers = Layers(seed, count, pipelined)
    best = layers.best()
    assert layers.exact() == pytest.approx(best, rel=1e-12)
    stops = greedy(count, layers.group_cost, layers.backward, pipelined)
    assert stops[-1] == count and stops == sorted({*stops})
    assert layers.greedy() >= best * (1 - 1e-12)


def test_greedy_misses_the_best_in_some_cases():
    cases = [Layers(seed, 1 + seed % 10) for seed in range(110)]
    assert max(each.greedy() / each.exact() for each in cases) > 1.01  # so there is an exact one


def test_all_groupings_are_all():
    found = list(every_grouping(4))
    assert len(found) == len({*map(tuple, found)}) == 8
    assert all(stops[-1] == 4 and stops == sorted(stops) for stops in found)


def test_the_report_says_how_often_each_is_the_best():
    lines = report(40, 5).splitlines()
    assert lines[0] == '40 random cases of 2 to 5 layers, beside the best of all groupings'
    assert lines[1].startswith('exact    the best in 40 (100.0%)')
    assert lines[2].startswith('greedy   the best in ') and '100.0%' not in lines[2]


class TestByHand:
    @staticmethod
    def layers(ready, start, each=1.0, numel=1.0):
        def group_cost(first, stop):
            return BucketTimes(ready[stop - 1], 0.0, 0.0, start + each * numel * (stop - first))

        return group_cost

    def test_a_free_start_keeps_layers_apart(self):
        group_cost = self.layers([1.0, 2.0, 3.0], start=0.0)
        assert greedy(3, group_cost, 3.0) == [1, 2, 3]
        assert exact(3, group_cost, 3.0) == [1, 2, 3]

    def test_what_appears_at_once_is_sent_together(self):
        group_cost = self.layers([1.0, 1.0, 1.0], start=0.5)
        assert greedy(3, group_cost, 1.0) == exact(3, group_cost, 1.0) == [3]

    def test_a_wait_that_costs_what_it_saves_is_not_made(self):
        group_cost = self.layers([1.0, 1.5], start=0.5)
        assert greedy(2, group_cost, 1.5) == [1, 2]

    def test_a_busy_network_makes_waiting_free(self):
        # The first takes from 1 to 11. The others appear meanwhile, so they save a start.
        ready, sizes = [1.0, 4.0, 7.0], [9.0, 1.0, 1.0]

        def group_cost(first, stop):
            return BucketTimes(ready[stop - 1], 0.0, 0.0, 1.0 + sum(sizes[first:stop]))

        assert greedy(3, group_cost, 7.0) == exact(3, group_cost, 7.0) == [1, 3]

    def test_one_layer(self):
        group_cost = self.layers([1.0], start=1.0)
        assert greedy(1, group_cost, 1.0) == exact(1, group_cost, 1.0) == [1]

    def test_hundreds_of_layers_take_a_moment(self):
        draw = random.Random(0)
        ready = list(itertools.accumulate(draw.uniform(0, 2) for _ in range(160)))
        stops = exact(160, self.layers(ready, start=0.7, each=0.5), ready[-1])
        assert stops[-1] == 160 and 1 < len(stops) < 160


class TestTheTimeOfPlanning:
    """docs/failures.md, rows 12 and 25."""

    @staticmethod
    def case(count):
        """So many parameters like those of a residual network, and times to plan them by."""
        draw = random.Random(count)
        sides = [(draw.choice((64, 256)), draw.choice((64, 576, 2304))) for _ in range(count)]
        members = [ParameterSpec(f'{n}', shape) for n, shape in enumerate(sides)]
        when = itertools.accumulate(draw.uniform(0, 2e-3) for _ in range(count))
        arrivals = dict(zip(map(str, reversed(range(count))), when, strict=True))
        route = Route(Line(2e-4, 1e-9), Line(1e-3, 1e-8), moving=Line(1e-5, 2e-10))
        costs = {'sparse': route, 'dense': route, 'copy': Line(1e-5, 2e-10)}
        known = forecast(arrivals, max(arrivals.values()), **costs)
        return PlanRequest(members, LayerRules(), DensitySchedule(0.001)), known

    def test_the_exact_grouping_of_161_layers_takes_no_16_seconds(self):
        asked, known = self.case(161)
        start = time.process_time()
        buckets = Merged(known).plan(asked)
        assert time.process_time() - start < 2  # 0.2 where nothing else runs
        assert 1 < len(buckets) < 161

    def test_ten_times_the_layers_take_some_ten_times_as_long(self):
        seconds = []
        for count in (400, 4000):
            asked, known = self.case(count)
            start = time.process_time()
            Merged(known).plan(asked)
            seconds.append(time.process_time() - start)
        assert seconds[1] < 35 * seconds[0]  # 100 where the time is quadratic

    def test_the_number_of_groupings_that_are_extended_is_bounded(self, monkeypatch):
        pairs = np.arange(50.0), np.arange(50.0)[::-1]
        assert len(merging.undominated(*pairs)) == 50
        monkeypatch.setattr(merging, 'MOST', 4)
        assert merging.undominated(*pairs).tolist() == [0, 16, 32, 49]
        layers = Layers(3, 40)  # whose fronts have more
        stops = exact(40, layers.group_cost, layers.backward)
        assert stops[-1] == 40 and stops == sorted({*stops})

    @pytest.mark.parametrize(
        'parts',
        [(AllGather(), TopK()), (PowerSGD(2), TopK()), (AllGather(), BlockTopK(3, BlockLayout(8)))],
    )
    def test_a_group_costs_what_its_bucket_does(self, parts):
        shapes = [(3, 5), (70, 9), (128, 64), (4, 4), (200, 30)]
        members = [ParameterSpec(f'{n}', shape) for n, shape in enumerate(shapes)]
        lane = BucketSpec.of(members, DensitySchedule(0.05))
        known = forecast({f'{n}': float(n) for n in range(5)}, start=0.1, byte=1e-3)
        known = Forecast(known.timing, parts[0], Codec(), parts[1])
        cost = group_cost(lane, known)
        for first, stop in itertools.combinations(range(6), 2):
            assert cost(first, stop) == known.bucket_times(lane.between(first, stop))
            stretch, between = Stretch(lane, first, stop), lane.between(first, stop)
            assert (stretch.members, stretch.name) == (between.members, between.name)
