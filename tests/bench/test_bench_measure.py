"""Measuring: the number of steps, the counters, and rows that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

import dgc
from bench.measure import Contender, Plan, Track, plan, sent_by_kernel
from bench.rows import all_rows, compute
from tools.harness.workloads import WORKLOADS, make_batches, make_model

WORKLOAD = WORKLOADS['digits']


@pytest.mark.parametrize(
    ('step_seconds', 'expected'),
    [
        (0.1, Plan(5, 4)),  # as many as requested
        (2.9, Plan(5, 2)),  # ten fit
        (4.0, Plan(5, 1)),  # seven fit: one in each round
        (9.0, Plan(3, 1)),
        (75.0, Plan(2, 1)),  # two in any case
        (0.0, Plan(5, 4)),
    ],
)
def test_steps_fit_into_the_seconds_but_are_at_least_two(step_seconds, expected):
    assert plan(step_seconds, seconds=30, rounds=5, steps=4) == expected


def test_a_single_round_has_two_steps_too():
    assert plan(75.0, seconds=30, rounds=1, steps=4) == Plan(1, 2)


@pytest.mark.skipif(not Path('/proc/self/net/dev').exists(), reason='not Linux')
def test_the_kernel_counts_what_an_interface_has_sent():
    assert sent_by_kernel('lo') >= 0
    assert sent_by_kernel('') != sent_by_kernel('')  # NaN
    with pytest.raises(ValueError, match="no interface 'eth77'"):
        sent_by_kernel('eth77')


def test_a_row_that_fails_on_one_rank_is_out_on_all_and_the_next_goes_on():
    def work(engine: dgc.Engine):
        track = Track(engine, make_batches(WORKLOAD, 2, engine.rank))
        bad, good = Contender(all_rows()[0]), Contender(all_rows()[0])

        def fail() -> None:
            if engine.rank == 1:
                raise RuntimeError('two\nlines é ' + 400 * 'x')

        track.attempt(bad, fail)
        good.trained = compute(make_model(WORKLOAD), engine, None)
        track.attempt(good, lambda: good.samples.append(track.run(good.trained, 1)))
        return bad.error, good.error, good.samples

    results = dgc.simulate(3, work)
    assert len({bad for bad, _, _ in results}) == 1
    assert results[0][0].startswith('RuntimeError: two lines é xxx')
    assert all(good == '' for _, good, _ in results)
    assert all(samples == results[0][2] or samples[0].ms > 0 for _, _, samples in results)


def test_all_ranks_gather_the_same_times_so_that_they_plan_alike():
    def work(engine: dgc.Engine):
        track = Track(engine, make_batches(WORKLOAD, 2, engine.rank))
        return track.run(compute(make_model(WORKLOAD), engine, None), 1)[:2]

    first, *others = dgc.simulate(3, work)
    assert all(other == first for other in others)
