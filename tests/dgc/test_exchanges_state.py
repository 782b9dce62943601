"""What an exchange remembers from step to step, and through a checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from dgc_helpers import bucket_of
from exchange_helpers import EXACT, Case, FirstLargest, assert_agree, bring, bring_all, largest

import dgc
from dgc.compressors import PeriodicThreshold, SampledTopK
from dgc.exchanges import Bruck, GTopK, Hierarchical, OkTopK, SparDL, reference
from dgc.exchanges.reference import Size
from dgc.exchanges.team_gather import AdaptiveSize
from dgc.sparse import Sparse


def steps_of(workers: int, steps: int, k: int, whole: bool) -> list[Case]:
    """Gradients that shrink and grow, so that a threshold which is reused does not fit."""
    draw = torch.Generator().manual_seed(workers)
    cases = []
    for step in range(steps):
        scale = (1.0, 0.1, 3.0)[step // 3 % 3]
        inputs = [scale * torch.randn(90, generator=draw) for _ in range(workers)]
        cases.append(Case(f'step {step}', k, [f if whole else largest(f, k) for f in inputs]))
    return cases


def assert_ends_as(case, ended, right):
    assert_agree(case, ended)
    assert torch.equal(ended[0].total, right.total), case.name
    for one, kept in zip(ended, right.kept, strict=True):
        torch.testing.assert_close(one.kept, kept, rtol=1e-6, atol=1e-6, msg=case.name)


class TestOkTopK:
    @pytest.mark.parametrize('workers', [1, 2, 3, 5, 8])
    def test_thresholds_and_regions_are_renewed_at_their_steps_and_reused_between(self, workers):
        cases = steps_of(workers, 20, 12, whole=False)
        fast = bring_all(lambda: OkTopK(4, 6), cases, in_a_row=True)
        threshold, bounds = None, []
        for step, (case, ended) in enumerate(zip(cases, fast, strict=True)):
            if step % 6 == 0:
                bounds = reference.region_bounds(case.inputs)
            exact = None if step % 4 == 0 else threshold
            right, threshold = reference.oktopk(case.inputs, case.k, bounds, exact)
            assert_ends_as(case, ended, right)

    def test_a_new_ratio_renews_the_threshold(self):
        """Of one worker alone, whose message has the first of -20, ±19, ±18, …"""
        message = Case('', 8, [torch.arange(-20.0, 20.0)])

        def worker(engine):
            exchange, states = OkTopK(), []
            for k in (8, 8, 2, 2, 1):
                bring(exchange, message._replace(k=k), engine)
                states.append(copy.deepcopy(exchange.state_dict()['states']['weight']))
            return states

        [states] = dgc.simulate(1, worker)
        assert [state['threshold'] for state in states] == [16, 16, 19, 19, 20]
        assert [state['k'] for state in states] == [8, 8, 2, 2, 1]
        assert [state['step'] for state in states] == [1, 2, 3, 4, 5]

    def test_a_threshold_moves_when_the_count_leaves_two_thirds_to_four_thirds_of_k(self):
        """Of 9 elements, 6 to 12 may be above."""

        def moved(above, threshold=1.0):
            exchange = OkTopK()
            state = {'step': 1, 'k': 9, 'threshold': threshold, 'bounds': []}
            exchange.load_state_dict({'states': {'weight': state}})
            message = torch.zeros(40)
            message[:above] = 2.0

            def worker(engine):
                bucket = bucket_of(message, ratio=8.5 / 40)
                sparse = dgc.sparse.gather(message, torch.arange(above))
                exchange.sum(bucket, sparse, EXACT, engine)
                return exchange.state_dict()['states']['weight']['threshold']

            return dgc.simulate(1, worker)[0]

        assert moved(0) == moved(5) == 0.992
        assert moved(6) == moved(9) == moved(12) == 1.0
        assert moved(13) == moved(40) == 1.012

    def test_regions_are_drawn_anew_for_another_number_of_workers(self):
        def exchange_of(workers, state):
            [case] = steps_of(workers, 1, 10, whole=False)

            def worker(engine):
                exchange = OkTopK()
                exchange.load_state_dict(copy.deepcopy(state))
                bring(exchange, case, engine)
                return exchange.state_dict()

            return dgc.simulate(workers, worker)[0], reference.region_bounds(case.inputs)

        state, bounds = exchange_of(3, {})
        assert state['states']['weight']['bounds'] == bounds
        state, bounds = exchange_of(4, state)
        assert state['states']['weight']['bounds'] == bounds
        assert state['states']['weight']['step'] == 2

    def test_buckets_do_not_share_thresholds(self):
        def worker(engine):
            exchange = OkTopK()
            for scale, name in ((1.0, 'one'), (5.0, 'other')):
                bucket = bucket_of(torch.zeros(40), ratio=0.1)
                bucket.members[0] = bucket.members[0]._replace(name=name)
                flat = scale * torch.arange(40.0)
                exchange.sum(bucket, dgc.sparse.gather(flat, torch.arange(36, 40)), EXACT, engine)
            return {
                name: state['threshold'] for name, state in exchange.state_dict()['states'].items()
            }

        assert dgc.simulate(1, worker) == [{'one': 36, 'other': 180}]


class TestBruck:
    @pytest.mark.parametrize(('workers', 'teams'), [(2, 2), (3, 3), (6, 3), (8, 4), (10, 5)])
    def test_sizes_adapt_as_in_the_slow_twin(self, workers, teams):
        cases = steps_of(workers, 15, 40, whole=True)
        make = lambda: SparDL(teams, Bruck(), FirstLargest())  # noqa: E731
        blocks = workers // teams
        sizes = [Size(-(-40 // blocks)) for _ in range(blocks)]
        seen = set()
        for case, ended in zip(cases, bring_all(make, cases, in_a_row=True), strict=True):
            assert_ends_as(case, ended, reference.spardl(case.inputs, case.k, teams, sizes))
            seen.add(sizes[0].h)
        assert len(seen) > 3

    def follow(self, counts, limit=20, teams=4):
        """The sizes, from the first on, where the sum has so many elements of ``limit``."""
        size = AdaptiveSize()
        sizes = [size.between(limit, teams)]
        for count in counts:
            size.adapt(count, limit)
            sizes.append(size.between(limit, teams))
        return sizes

    def test_it_begins_as_large_as_it_may_be(self):
        assert self.follow([]) == [20]

    def test_it_shrinks_while_the_sum_has_too_many_and_the_step_doubles_every_second_time(self):
        assert self.follow([25] * 7) == [20, 19, 17, 15, 11, 7, 5, 5]

    def test_it_grows_while_the_sum_has_too_few(self):
        # Down by 1, 2, 2, 4, 4, and up by half of that, 2, then 4 twice and 8.
        assert self.follow([25] * 5 + [3] * 4) == [20, 19, 17, 15, 11, 7, 9, 13, 17, 20]

    def test_the_step_halves_whenever_it_turns(self):
        assert self.follow([25] * 4 + [3, 25, 3, 25]) == [20, 19, 17, 15, 11, 13, 12, 13, 12]

    def test_it_stays_where_the_sum_is_just_right(self):
        assert self.follow([25, 20, 20, 25]) == [20, 19, 19, 19, 17]

    def test_it_lies_between_the_limit_and_a_share_of_it(self):
        assert min(self.follow([99] * 50, limit=21, teams=4)) == 6
        assert max(self.follow([0] * 50, limit=21, teams=4)) == 21

    def test_it_turns_in_a_few_steps_however_long_it_went_one_way(self):
        """Its step has not grown without bound meanwhile."""
        sizes = self.follow([99] * 1000 + [0, 99] * 8, limit=20, teams=4)
        assert sizes[1000] == 5
        assert max(sizes[-4:]) - min(sizes[-4:]) <= 1

    def test_a_smaller_limit_takes_effect_at_once(self):
        size = AdaptiveSize()
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
def test_what_is_loaded_goes_on_as_what_was_saved(row):
    """Seven steps, and seven more; after the others, the first exchange's state is its own."""
    make = RESUMED[row]
    cases = steps_of(4, 14, 20, whole=make().selects)

    def worker(engine):
        first = make()
        for case in cases[:7]:
            bring(first, case, engine)
        second, state = make(), copy.deepcopy(first.state_dict())
        second.load_state_dict(state)
        straight = [bring(first, case, engine) for case in cases[7:]]
        resumed = [bring(second, case, engine) for case in cases[7:]]
        assert first.state_dict() == second.state_dict()
        return straight, resumed

    for straight, resumed in dgc.simulate(4, worker):
        for one, other in zip(straight, resumed, strict=True):
            assert torch.equal(one.total, other.total)
            assert torch.equal(one.kept, other.kept)
            assert one.sent == other.sent


@pytest.mark.parametrize('row', ['oktopk', 'spardl, Bruck', 'spardl, sampled'])
def test_what_is_remembered_matters(row):
    """Else the test above would pass of itself."""
    make = RESUMED[row]
    cases = steps_of(4, 14, 20, whole=make().selects)
    rest = bring_all(make, cases, in_a_row=True)[7:]
    fresh = bring_all(make, cases[7:], in_a_row=True)
    assert any(
        not torch.equal(one[0].total, other[0].total) or one[0].sent != other[0].sent
        for one, other in zip(rest, fresh, strict=True)
    )


@pytest.mark.parametrize('other', [OkTopK, lambda: SparDL(3), GTopK], ids=['oktopk', 'B', 'gtopk'])
@pytest.mark.parametrize('one', [OkTopK, lambda: SparDL(3)], ids=['oktopk', 'spardl'])
def test_the_state_of_another_exchange_is_ignored(one, other):
    """A run may be resumed with another one; what its memory keeps is what counts."""
    first, second = one(), other()
    [case] = steps_of(3, 1, 8, first.selects)
    dgc.simulate(3, lambda engine: bring(first, case, engine))
    assert first.state_dict() != one().state_dict()
    second.load_state_dict(first.state_dict())
    assert type(one()) is type(other()) or second.state_dict() == other().state_dict()


def test_a_compressor_that_remembers_does_so_for_each_block():
    """Blocks of different scales: one threshold for all would choose too few of the small ones."""
    exchange = SparDL(compressor=PeriodicThreshold())
    message = torch.cat([torch.arange(1.0, 101.0) * scale for scale in (1.0, 0.01)])

    def worker(engine):
        bucket = bucket_of(message, ratio=0.1)
        for _ in range(2):
            parts = exchange.sum(bucket, Sparse(message, None, 200), EXACT, engine).parts
        return torch.cat([part.indices for part in parts])

    for indices in dgc.simulate(2, worker):
        assert len(indices) == 20
        assert (indices < 100).sum() == 10
