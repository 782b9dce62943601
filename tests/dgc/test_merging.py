"""Grouping neighbours: against every grouping that there is."""

from __future__ import annotations

import itertools
import random

import pytest

from bench.merging import Layers, every_grouping, report
from dgc.planner.merging import exact, greedy
from dgc.timeline import BucketTimes


@pytest.mark.parametrize('seed', range(120))
def test_no_grouping_is_better_than_the_exact_one_and_the_greedy_one_is_a_grouping(seed):
    count = 1 + seed % 10 if seed < 110 else 12
    layers = Layers(seed, count)
    best = layers.best()
    assert layers.exact() == pytest.approx(best, rel=1e-12)
    stops = greedy(count, layers.group_cost, layers.backward)
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
