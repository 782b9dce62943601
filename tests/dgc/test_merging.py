"""Grouping neighbours: against every grouping that there is."""

from __future__ import annotations

import itertools
import random

import pytest

from dgc.planner.merging import exact, greedy
from dgc.timeline import Passage, end


class Layers:
    """Random layers. s: as a function of elements, convex, concave or linear."""

    def __init__(self, seed: int, count: int) -> None:
        draw = random.Random(seed)
        steps = [draw.choice((0.0, draw.uniform(0, 3))) for _ in range(count)]
        self.ready = list(itertools.accumulate(steps, initial=draw.uniform(0, 3)))[1:]
        self.sizes = [draw.choice((1, 10, 100)) * draw.uniform(0.5, 2) for _ in range(count)]
        self.backward = self.ready[-1] + draw.choice((0.0, 1.0))
        self.start = draw.choice((0.0, 0.3, 2.0))
        self.each = draw.choice((0.001, 0.02, 0.2))
        self.power = draw.choice((0.8, 1.0, 1.2))
        self.work = draw.choice((0.0, 0.01))
        self.moving = draw.choice((0.0, 0.005))

    def together(self, first: int, stop: int) -> Passage:
        numel = sum(self.sizes[first:stop])
        return Passage(
            self.ready[stop - 1],
            self.work * (1 + numel**self.power),
            self.moving * numel,
            self.start + self.each * numel,
        )

    def seconds(self, stops: list[int]) -> float:
        """Of a step, by the timeline, with groups that stop there."""
        firsts = [0, *stops[:-1]]
        return end(
            [self.together(*ends) for ends in zip(firsts, stops, strict=True)], self.backward
        )


def every_grouping(count: int):
    """All 2^(count-1)."""
    for cuts in itertools.product((False, True), repeat=count - 1):
        yield [*(place for place, cut in enumerate(cuts, 1) if cut), count]


@pytest.mark.parametrize('seed', range(120))
def test_no_grouping_is_better_than_the_exact_one_and_the_greedy_one_is_a_grouping(seed):
    count = 1 + seed % 10 if seed < 110 else 12
    layers = Layers(seed, count)
    best = min(layers.seconds(stops) for stops in every_grouping(count))
    found = exact(count, layers.together, layers.backward)
    assert layers.seconds(found) == pytest.approx(best, rel=1e-12)
    stops = greedy(count, layers.together)
    assert stops[-1] == count and stops == sorted({*stops})
    assert layers.seconds(stops) >= best * (1 - 1e-12)


def test_greedy_misses_the_best_in_some_cases():
    gaps = []
    for seed in range(110):
        layers = Layers(seed, 1 + seed % 10)
        ends = [
            layers.seconds(stops)
            for stops in (
                greedy(len(layers.sizes), layers.together),
                exact(len(layers.sizes), layers.together, layers.backward),
            )
        ]
        gaps.append(ends[0] / ends[1] - 1)
    assert max(gaps) > 0.01  # which is why there is an exact one


class TestByHand:
    @staticmethod
    def layers(ready, start, each=1.0, numel=1.0):
        def together(first, stop):
            return Passage(ready[stop - 1], 0.0, 0.0, start + each * numel * (stop - first))

        return together

    def test_a_free_start_keeps_layers_apart(self):
        together = self.layers([1.0, 2.0, 3.0], start=0.0)
        assert greedy(3, together) == [1, 2, 3]
        assert exact(3, together, 3.0) == [1, 2, 3]

    def test_what_appears_at_once_travels_together(self):
        together = self.layers([1.0, 1.0, 1.0], start=0.5)
        assert greedy(3, together) == exact(3, together, 1.0) == [3]

    def test_a_busy_network_makes_waiting_free(self):
        # The first takes from 1 to 11. The others appear meanwhile, so they save a start.
        ready, sizes = [1.0, 4.0, 7.0], [9.0, 1.0, 1.0]

        def together(first, stop):
            return Passage(ready[stop - 1], 0.0, 0.0, 1.0 + sum(sizes[first:stop]))

        assert greedy(3, together) == exact(3, together, 7.0) == [1, 3]

    def test_one_layer(self):
        together = self.layers([1.0], start=1.0)
        assert greedy(1, together) == exact(1, together, 1.0) == [1]

    def test_hundreds_of_layers_take_a_moment(self):
        draw = random.Random(0)
        ready = list(itertools.accumulate(draw.uniform(0, 2) for _ in range(160)))
        stops = exact(160, self.layers(ready, start=0.7, each=0.5), ready[-1])
        assert stops[-1] == 160 and 1 < len(stops) < 160
