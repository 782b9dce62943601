"""State that an exchange keeps from step to step, and through a checkpoint."""

from __future__ import annotations

import copy

import exchange_reference as reference
import pytest
import torch
from exchange_helpers import (
    EXACT,
    Case,
    FirstLargest,
    assert_agree,
    bucket_for,
    largest,
    run_all,
    run_rank,
)
from exchange_reference import Size

import dgc
from dgc.compressors import PeriodicThreshold, SampledTopK
from dgc.exchanges import Bruck, Context, GTopK, Hierarchical, OkTopK, SparDL
from dgc.exchanges.team_gather import AdaptiveSize
from dgc.sparse import Sparse


def steps_of(world_size: int, steps: int, k: int, corrected: bool) -> list[Case]:
    """Gradients that shrink and grow, so that a threshold which is reused does not fit."""
    draw = torch.Generator().manual_seed(world_size)
    cases = []
    for step in range(steps):
        scale = (1.0, 0.1, 3.0)[step // 3 % 3]
        inputs = [scale * torch.randn(90, generator=draw) for _ in range(world_size)]
        cases.append(Case(f'step {step}', k, [f if corrected else largest(f, k) for f in inputs]))
    return cases


def assert_equals_plain(case, results, expected):
    assert_agree(case, results)
    assert torch.equal(results[0].total, expected.total), case.name
    for one, residual in zip(results, expected.residuals, strict=True):
        torch.testing.assert_close(one.residual, residual, rtol=1e-6, atol=1e-6, msg=case.name)


def resumed_bucket(before, after, cases, engine):
    """A bucket of ``after`` with the state that ``before`` has after some steps."""
    first, second = (
        bucket_for(each, cases[0].inputs[engine.rank], engine) for each in (before, after)
    )
    for case in cases:
        run_rank(before, case, engine, bucket=first)
    state = first.state.state_dict()
    second.state.load_state_dict(state, state['values'])
    return second


class TestOkTopK:
    @pytest.mark.parametrize('world_size', [1, 2, 3, 5, 8])
    def test_thresholds_and_regions_are_renewed_at_their_steps_and_reused_between(self, world_size):
        cases = steps_of(world_size, 20, 12, corrected=False)
        fast = run_all(lambda: OkTopK(4, 6), cases, consecutive=True)
        threshold, bounds = None, []
        for step, (case, results) in enumerate(zip(cases, fast, strict=True)):
            if step % 6 == 0:
                bounds = reference.region_bounds(case.inputs)
            exact = None if step % 4 == 0 else threshold
            expected, threshold = reference.oktopk(case.inputs, case.k, bounds, exact)
            assert_equals_plain(case, results, expected)

    def test_a_new_density_renews_the_threshold(self):
        """Of one rank alone, whose message has the first of -20, ±19, ±18, …"""
        message = Case('', 8, [torch.arange(-20.0, 20.0)])

        def worker(engine):
            exchange, states = OkTopK(), []
            bucket = bucket_for(exchange, message.inputs[0], engine)
            for k in (8, 8, 2, 2, 1):
                run_rank(exchange, message._replace(k=k), engine, bucket=bucket)
                states.append(copy.deepcopy(bucket.state['exchange']['reused']))
            return states

        [states] = dgc.simulate(1, worker)
        assert [state['threshold'] for state in states] == [16, 16, 19, 19, 20]
        assert [state['k'] for state in states] == [8, 8, 2, 2, 1]
        assert [state['step'] for state in states] == [1, 2, 3, 4, 5]

    def test_a_threshold_moves_when_the_count_leaves_two_thirds_to_four_thirds_of_k(self):
        """Of 9 elements, 6 to 12 may be above."""

        def moved(above, threshold=1.0):
            exchange = OkTopK()
            message = torch.zeros(40)
            message[:above] = 2.0

            def worker(engine):
                bucket = bucket_for(exchange, message, engine, density=8.5 / 40)
                reused = bucket.state['exchange']['reused']
                reused.update(step=1, k=9, threshold=threshold, bounds=[])
                sparse = dgc.sparse.gather(message, torch.arange(above))
                exchange.reduce(sparse, Context(bucket, 9, EXACT, engine))
                return reused['threshold']

            return dgc.simulate(1, worker)[0]

        assert moved(0) == moved(5) == 0.992
        assert moved(6) == moved(9) == moved(12) == 1.0
        assert moved(13) == moved(40) == 1.012

    @pytest.mark.parametrize(
        ('before', 'after'),
        [
            (Hierarchical(OkTopK(), 2), OkTopK()),
            (OkTopK(), Hierarchical(OkTopK(), 2)),
            (Hierarchical(OkTopK(), 4), Hierarchical(OkTopK(), 2)),
        ],
        ids=['from machines', 'to machines', 'to smaller machines'],
    )
    def test_ranks_that_had_other_sums_begin_with_one_threshold(self, before, after):
        """Those that were not the first of a machine had sums of nothing, and a threshold of 0."""
        cases = steps_of(4, 4, 12, corrected=False)

        def worker(engine):
            bucket = resumed_bucket(before, after, cases[:3], engine)
            run_rank(after, cases[3], engine, bucket=bucket)
            return bucket.state['exchange']['reused']

        states = dgc.simulate(4, worker)
        place = 2 if isinstance(after, Hierarchical) else 1  # among the ranks of a machine
        assert all(state == states[rank % place] for rank, state in enumerate(states))
        assert states[0]['threshold'] > 0

    def test_regions_are_computed_anew_for_another_world_size(self):
        def step_of(world_size, state):
            [case] = steps_of(world_size, 1, 10, corrected=False)

            def worker(engine):
                exchange = OkTopK()
                bucket = bucket_for(exchange, case.inputs[engine.rank], engine)
                reused = bucket.state['exchange']['reused']
                reused.update(copy.deepcopy(state))
                run_rank(exchange, case, engine, bucket=bucket)
                return reused

            return dgc.simulate(world_size, worker)[0], reference.region_bounds(case.inputs)

        state, bounds = step_of(3, {})
        assert state['bounds'] == bounds
        state, bounds = step_of(4, state)
        assert state['bounds'] == bounds
        assert state['step'] == 2

    def test_buckets_do_not_share_thresholds(self):
        def worker(engine):
            exchange, thresholds = OkTopK(), {}
            for scale, name in ((1.0, 'one'), (5.0, 'other')):
                bucket = bucket_for(exchange, torch.zeros(40), engine, density=0.1)
                flat = scale * torch.arange(40.0)
                sparse = dgc.sparse.gather(flat, torch.arange(36, 40))
                exchange.reduce(sparse, Context(bucket, 4, EXACT, engine))
                thresholds[name] = bucket.state['exchange']['reused']['threshold']
            return thresholds

        assert dgc.simulate(1, worker) == [{'one': 36, 'other': 180}]


class TestBruck:
    @pytest.mark.parametrize(('world_size', 'teams'), [(2, 2), (3, 3), (6, 3), (8, 4), (10, 5)])
    def test_sizes_adapt_as_in_the_plain_twin(self, world_size, teams):
        cases = steps_of(world_size, 15, 40, corrected=True)
        make = lambda: SparDL(teams, Bruck(), FirstLargest())  # noqa: E731
        blocks = world_size // teams
        sizes = [Size(-(-40 // blocks)) for _ in range(blocks)]
        seen = set()
        for case, results in zip(cases, run_all(make, cases, consecutive=True), strict=True):
            assert_equals_plain(case, results, reference.spardl(case.inputs, case.k, teams, sizes))
            seen.add(sizes[0].h)
        assert len(seen) > 3

    def follow(self, counts, limit=20, teams=4):
        """The sizes, from the first on, where the sums have ``counts`` elements."""
        size = AdaptiveSize({})
        sizes = [size.between(limit, teams)]
        for count in counts:
            size.adapt(count, limit)
            sizes.append(size.between(limit, teams))
        return sizes

    def test_it_begins_at_the_limit(self):
        assert self.follow([]) == [20]

    def test_it_shrinks_while_the_sum_has_too_many_and_the_step_doubles_every_second_time(self):
        assert self.follow([25] * 7) == [20, 19, 17, 15, 11, 7, 5, 5]

    def test_it_grows_while_the_sum_has_too_few(self):
        # Down by 1, 2, 2, 4, 4, and up by half of that, 2, then 4 twice and 8.
        assert self.follow([25] * 5 + [3] * 4) == [20, 19, 17, 15, 11, 7, 9, 13, 17, 20]

    def test_the_step_halves_whenever_it_turns(self):
        assert self.follow([25] * 4 + [3, 25, 3, 25]) == [20, 19, 17, 15, 11, 13, 12, 13, 12]

    def test_it_stays_where_the_sum_has_limit_elements(self):
        assert self.follow([25, 20, 20, 25]) == [20, 19, 19, 19, 17]

    def test_it_lies_between_the_limit_and_the_limit_over_teams(self):
        assert min(self.follow([99] * 50, limit=21, teams=4)) == 6
        assert max(self.follow([0] * 50, limit=21, teams=4)) == 21

    def test_it_turns_in_a_few_steps_however_long_it_went_one_way(self):
        """Its step is bounded."""
        sizes = self.follow([99] * 1000 + [0, 99] * 8, limit=20, teams=4)
        assert sizes[1000] == 5
        assert max(sizes[-4:]) - min(sizes[-4:]) <= 1

    @pytest.mark.parametrize(
        ('world_size', 'before', 'after'),
        [
            (12, SparDL(2, Bruck()), SparDL(3, Bruck())),
            (12, SparDL(4, Bruck()), SparDL(2, Bruck())),
            (8, Hierarchical(SparDL(2, Bruck()), 2), SparDL(2, Bruck())),
            (8, SparDL(2, Bruck()), Hierarchical(SparDL(2, Bruck()), 2)),
        ],
        ids=['2 to 3 teams', '4 to 2 teams', 'from machines', 'to machines'],
    )
    def test_it_begins_anew_with_other_teams(self, world_size, before, after):
        """The ranks of a block's owners would have different sizes: others owned it."""
        cases = steps_of(world_size, 12, 40, corrected=True)

        def worker(engine):
            bucket = resumed_bucket(before, after, cases[:9], engine)
            return [run_rank(after, case, engine, bucket=bucket) for case in cases[9:]]

        fresh = run_all(lambda: after, cases[9:], consecutive=True)
        resumed = zip(*dgc.simulate(world_size, worker), strict=True)
        for case, ours, expected in zip(cases[9:], resumed, fresh, strict=True):
            assert_agree(case, ours)
            for one, other in zip(ours, expected, strict=True):
                assert torch.equal(one.total, other.total)
                assert torch.equal(one.residual, other.residual)

    def test_a_smaller_limit_takes_effect_at_once(self):
        size = AdaptiveSize({})
        assert [size.between(limit, 4) for limit in (20, 8, 40)] == [20, 8, 10]


RESUMED = {
    'oktopk': lambda: OkTopK(4, 6),
    'spardl, Bruck': lambda: SparDL(4, Bruck()),
    'spardl, sampled': lambda: SparDL(2, compressor=SampledTopK(seed=5, resample=False)),
    'spardl, periodic': lambda: SparDL(1, compressor=PeriodicThreshold(4)),
    'hierarchical oktopk': lambda: Hierarchical(OkTopK(4, 6), 2),
    'gtopk': GTopK,
}


@pytest.mark.parametrize('row', RESUMED)
def test_loaded_state_continues_as_the_saved_one(row):
    """Seven steps, then seven more from the same state by two exchanges with a bucket each."""
    make = RESUMED[row]
    cases = steps_of(4, 14, 20, corrected=make().selects)

    def worker(engine):
        first, second = make(), make()
        buckets = [
            bucket_for(each, cases[0].inputs[engine.rank], engine) for each in (first, second)
        ]
        for case in cases[:7]:
            run_rank(first, case, engine, bucket=buckets[0])
        state = copy.deepcopy(buckets[0].state.state_dict())
        buckets[1].state.load_state_dict(state, state['values'])
        straight = [run_rank(first, case, engine, bucket=buckets[0]) for case in cases[7:]]
        resumed = [run_rank(second, case, engine, bucket=buckets[1]) for case in cases[7:]]
        assert buckets[0].state['exchange'] == buckets[1].state['exchange']
        return straight, resumed

    for straight, resumed in dgc.simulate(4, worker):
        for one, other in zip(straight, resumed, strict=True):
            assert torch.equal(one.total, other.total)
            assert torch.equal(one.residual, other.residual)
            assert one.sent == other.sent


@pytest.mark.parametrize('row', ['oktopk', 'spardl, Bruck', 'spardl, sampled'])
def test_without_the_state_the_results_differ(row):
    """Otherwise the test above would pass without any state."""
    make = RESUMED[row]
    cases = steps_of(4, 14, 20, corrected=make().selects)
    rest = run_all(make, cases, consecutive=True)[7:]
    fresh = run_all(make, cases[7:], consecutive=True)
    assert any(
        not torch.equal(one[0].total, other[0].total) or one[0].sent != other[0].sent
        for one, other in zip(rest, fresh, strict=True)
    )


@pytest.mark.parametrize('other', [OkTopK, lambda: SparDL(3), GTopK], ids=['oktopk', 'B', 'gtopk'])
@pytest.mark.parametrize('one', [OkTopK, lambda: SparDL(3)], ids=['oktopk', 'spardl'])
def test_the_state_of_another_exchange_is_ignored(one, other):
    """A run may be resumed with another exchange, and keeps its residuals."""
    [case] = steps_of(3, 1, 8, one().selects)

    def worker(engine):
        first, second = (
            bucket_for(each(), case.inputs[engine.rank], engine) for each in (one, other)
        )
        initial = [copy.deepcopy(bucket.state['exchange']) for bucket in (first, second)]
        run_rank(one(), case, engine, bucket=first)
        saved = first.state.state_dict()
        second.state.load_state_dict(saved, saved['values'])
        return initial, [bucket.state['exchange'] for bucket in (first, second)]

    for initial, afterwards in dgc.simulate(3, worker):
        assert afterwards[0] != initial[0]
        same = type(one()) is type(other())
        assert afterwards[1] == (afterwards[0] if same else initial[1])


def test_a_compressor_that_remembers_does_so_for_each_block():
    """Blocks of different scales: one threshold for all would select too few small elements."""
    exchange = SparDL(compressor=PeriodicThreshold())
    message = torch.cat([torch.arange(1.0, 101.0) * scale for scale in (1.0, 0.01)])

    def worker(engine):
        bucket = bucket_for(exchange, message, engine, density=0.1)
        context = Context(bucket, 20, EXACT, engine)
        for _ in range(2):
            parts = exchange.reduce(Sparse(message, None, 200), context).contributions
        return torch.cat([part.indices for part in parts])

    for indices in dgc.simulate(2, worker):
        assert len(indices) == 20
        assert (indices < 100).sum() == 10
