"""Planners by times: what they measure, and what they make of it."""

from __future__ import annotations

import pytest
import torch
from dgc_helpers import forecast, parameters, wrap
from test_planner import in_one_group, names, sized
from torch.nn import Parameter

import dgc
from dgc.codec import Codec
from dgc.costmodel import Line, Network
from dgc.exchanges import AllGather, AllReduce
from dgc.planner import Adaptive, Merged, MergedGreedily
from dgc.planner.broadcast import broadcast_json
from dgc.planner.calibration import calibrate_path, sizes
from dgc.planner.forecast import FREE, Forecast, Route, Timing
from dgc.planner.timed import best_of
from dgc.profile import Profile
from dgc.rules import LayerRules
from dgc.schedule import RatioSchedule

SPARSE = RatioSchedule(0.01)


def evenly(count):
    """The last of so many parameters, named after their place, comes first; one a second."""
    return {str(place): float(count - place) for place in range(count)}


def plan(planner, members, schedule=SPARSE, rules=None):
    return planner.plan(members, rules or LayerRules(), schedule, ('residual',))


class TestMerged:
    @pytest.mark.parametrize('planner', [Merged, MergedGreedily])
    def test_between_the_extremes(self, planner):
        members = sized(1000, 1000, 1000)
        apart = plan(planner(forecast(evenly(3), start=0.0, byte=1e-3)), members)
        assert names(apart) == [['2'], ['1'], ['0']]
        at_once = plan(planner(forecast({}, start=1.0)), members)
        assert names(at_once) == [['2', '1', '0']]

    def test_the_order_is_that_in_which_gradients_came(self):
        came = forecast({'0': 1.0, '1': 3.0, '2': 2.0}, backward=3.0, byte=1e-3)
        assert names(plan(Merged(came), sized(1000, 1000, 1000))) == [['0'], ['2'], ['1']]

    def test_what_may_not_share_a_bucket_does_not(self):
        buckets = plan(Merged(forecast({}, start=1.0)), in_one_group(parameters()))
        assert sorted(map(sorted, names(buckets))) == [
            ['bias', 'scale'],
            ['narrow.weight', 'wide.weight'],
        ]
        assert {bucket.schedule for bucket in buckets} == {SPARSE, None}
        own = LayerRules(ratios={'wide.*': 0.1})
        assert (
            len(plan(Merged(forecast({}, start=1.0)), in_one_group(parameters()), rules=own)) == 3
        )

    def test_lanes_know_of_each_other(self):
        """Alone, the scales would go in two: then the second has less to send at the end. But the
        matrices keep the network busy until then."""
        shapes = {'w': (1000, 1), 'late': (500,), 'early': (500,)}
        members = in_one_group((name, Parameter(torch.zeros(s))) for name, s in shapes.items())
        costs = {'dense': Route(FREE, Line(1.0, 1e-3)), 'start': 20.0}
        came = {'w': 3.0, 'early': 8.0, 'late': 10.0}
        known = forecast(came, **costs)
        alone = [each for each in members if each[0] != 'w']
        assert sorted(names(plan(Merged(known), alone))) == [['early'], ['late']]
        assert sorted(names(plan(Merged(known), members))) == [['early', 'late'], ['w']]

    @pytest.mark.parametrize('planner', [Merged, MergedGreedily])
    def test_a_ratio_for_every_layer_is_planned_at_once(self, planner):
        count = 60  # 2^60 ways, were each lane to be tried in two
        rules = LayerRules(ratios={f'{n}': 0.001 + n / 1e5 for n in range(count)})
        known = forecast(evenly(count), start=1.0, byte=1e-6)
        assert len(plan(planner(known), sized(*[1000] * count), rules=rules)) == count

    def test_many_lanes_are_decided_one_by_one(self):
        counted = []

        def seconds(way):
            counted.append(way)
            return sum(way)

        assert [*best_of([[3, 1, 2]] * 12, seconds)] == [1] * 12
        assert len(counted) < 3**12 / 1000
        assert [*best_of([[3, 1], [1, 3]], lambda way: abs(sum(way) - 6))] == [3, 3]

    def test_parameters_without_elements_are_left_out(self):
        members = in_one_group(
            [('none', Parameter(torch.zeros(0, 3))), ('one', Parameter(torch.zeros(1, 1)))]
        )
        assert names(plan(Merged(forecast({})), members)) == [['one']]

    def test_far_too_many_layers_are_merged_greedily(self, monkeypatch):
        monkeypatch.setattr('dgc.planner.timed.exact', None)  # would fail if it were called
        monkeypatch.setattr('dgc.planner.timed.AFFORDABLE', 2)
        assert len(plan(Merged(forecast({}, start=1.0)), sized(10, 10, 10))) == 1

    def test_the_extremes_are_foreseen_beside_it(self):
        known = Merged(forecast(evenly(3), backward=3.0, start=0.1, byte=1e-3))
        members = sized(1000, 1000, 1000)
        foreseen = known.foreseen(plan(known, members), members, LayerRules(), SPARSE)
        assert list(foreseen) == ['Merged', 'per tensor', 'whole model']
        assert foreseen['Merged'] == min(foreseen.values()) < max(foreseen.values())


class TestAdaptive:
    # 10 of 1,000 elements are sent as 3 times so many bytes:
    bytes_each = (AllGather().bytes_sent(1000, 20, Codec('fp32', 'int32'), 4)
                  - AllGather().bytes_sent(1000, 10, Codec('fp32', 'int32'), 4)) / 10  # fmt: skip

    def ratios(self, planner, members):
        return [bucket.schedule.ratio for bucket in plan(planner, members) if bucket.schedule]

    def test_as_much_as_hides_behind_the_next_layer(self):
        # Gaps of 1 s; an element takes 20 ms: 50 of them, less the message's head.
        costs = forecast(evenly(3), byte=0.02 / self.bytes_each)
        first, second, last = self.ratios(Adaptive(costs), sized(1000, 1000, 1000))
        assert 0.04 < first == second <= 0.05
        assert last == SPARSE.ratio  # behind which nothing comes

    def test_never_above_its_bound_nor_below_the_schedule(self):
        fast, slow = forecast(evenly(2)), forecast(evenly(2), start=5.0)
        assert self.ratios(Adaptive(fast, max_ratio=0.05), sized(1000, 1000))[0] == 0.05
        assert self.ratios(Adaptive(slow), sized(1000, 1000)) == [0.01, 0.01]
        assert self.ratios(Adaptive(fast, max_ratio=0.001), sized(1000, 1000)) == [0.01, 0.01]

    def test_compression_takes_its_part_of_the_time(self):
        busy = forecast(evenly(2), compress=Line(1.1, 0.0))
        assert self.ratios(Adaptive(busy), sized(1000, 1000)) == [0.01, 0.01]

    def test_each_layer_by_itself_and_the_dense_ones_together(self):
        buckets = plan(Adaptive(forecast({})), in_one_group(parameters()))
        assert sorted(map(len, names(buckets))) == [1, 1, 2]

    @pytest.mark.parametrize('bound', [0.0, -1.0, 1.5])
    def test_a_bound_that_is_none(self, bound):
        with pytest.raises(ValueError, match='max_ratio'):
            Adaptive(max_ratio=bound)


class TestForecast:
    def test_a_bucket_is_dense_where_the_reducer_would_send_it_so(self):
        known = forecast({'w': 1.0}, byte=1.0, dense=Route(FREE, Line(7.0, 0.0)))
        assert known.passage(['w'], 100, 0.5).network == 7.0
        assert known.passage(['w'], 100, None).network == 7.0
        assert known.passage(['w'], 1000, 0.01).network > 100  # its bytes
        never = forecast({'w': 1.0}, sparse=None, dense=Route(FREE, Line(7.0, 0.0)))
        assert never.passage(['w'], 100, 0.01).network == 7.0

    def test_sharing_a_bucket_costs_a_copy(self):
        known = forecast({'a': 1.0, 'b': 2.0}, copy=Line(0.0, 1.0), moving=Line(2.0, 0.5))
        alone, both = known.passage(['a'], 100, 0.01), known.passage(['a', 'b'], 100, 0.01)
        assert (alone.ready, both.ready) == (1.0, 2.0)
        assert (alone.processor, both.processor) == (0.0, 100.0)
        assert both.moving == 2 + 0.5 * AllGather().bytes_sent(100, 1, Codec('fp32', 'int32'), 4)

    def test_through_json_and_back(self):
        timing = forecast({'a': 1 / 3}, start=0.1, byte=1e-9, moving=Line(0.2, 1e-10)).timing
        assert Timing.from_json(timing.to_json()) == timing
        never = forecast({}, sparse=None).timing
        assert Timing.from_json(never.to_json()) == never

    def test_one_that_was_saved_without_moving(self):
        timing = forecast({'a': 1.0}, start=0.1).timing
        saved = timing.to_json()
        for route in ('sparse', 'dense'):
            del saved['costs'][route]['moving']
        assert Timing.from_json(saved) == timing


class TestCalibration:
    def test_a_simulated_network_is_found_again(self):
        """Of which everything is known: (P-1)(α + β·capacity), and 2(P-1)(α + β·4n/P)."""
        workers, network = 4, Network(alpha=2.0, beta=1e-3)
        composition = dgc.deep_gradient_compression(0.01)

        def worker(engine):
            return calibrate_path(composition, engine, 1 << 14, torch.device('cpu'))

        costs = dgc.simulate(workers, worker, network)
        assert all(each == costs[0] for each in costs)
        sparse, dense = costs[0].sparse, costs[0].dense
        assert sparse.exchange == pytest.approx((3 * 2.0, 1e-3), rel=1e-2)
        assert dense.exchange == pytest.approx((6 * 2.0, 1e-3), rel=1e-2)
        assert 0 < sparse.compress.at(1 << 14) < 5

    def test_it_leaves_no_trace_in_the_composition(self):
        composition = dgc.deep_gradient_compression(0.01)
        before = composition.compressor.state_dict()
        dgc.simulate(
            1, lambda engine: calibrate_path(composition, engine, 5000, torch.device('cpu'))
        )
        assert composition.compressor.state_dict() == before

    def test_dense_compositions_have_no_sparse_route(self):
        def worker(engine):
            return calibrate_path(dgc.dense(), engine, 2000, torch.device('cpu'))

        assert dgc.simulate(2, worker)[0].sparse is None

    @pytest.mark.parametrize(
        ('numel', 'expected'),
        [(3, [3]), (1024, [1024]), (5000, [1024, 4096, 5000]), (4096, [1024, 4096])],
    )
    def test_sizes_go_up_to_the_models(self, numel, expected):
        assert sizes(numel) == expected


class TestInTraining:
    @staticmethod
    def profile():
        return Profile(0.01, 0.05, {'bias': 0.02, 'narrow.weight': 0.03, 'wide.weight': 0.04})

    @pytest.mark.parametrize('planner', [Merged(), MergedGreedily(), Adaptive()])
    def test_all_workers_plan_alike_by_what_rank_0_measured(self, planner):
        def worker(engine):
            composition = dgc.deep_gradient_compression(0.02, planner=planner)
            return wrap(parameters(), composition, engine, profile=self.profile).plan

        plans = dgc.simulate(3, worker, Network(1e-3, 1e-8))
        assert plans[0] == plans[1] == plans[2]
        assert list(plans[0].foreseen) == [type(planner).__name__, 'per tensor', 'whole model']

    def test_dense_gradients_are_merged_too(self):
        def worker(engine):
            return wrap(parameters(), dgc.dense(planner=Merged()), engine, profile=self.profile)

        plan = dgc.simulate(2, worker, Network(1.0, 0.0))[0].plan
        assert [list(bucket.parameters) for bucket in plan.buckets] == [
            ['bias', 'narrow.weight', 'wide.weight', 'scale']
        ]

    def test_without_a_profile_there_is_nothing_to_go_by(self):
        composition = dgc.deep_gradient_compression(planner=Merged())
        with pytest.raises(ValueError, match='Merged plans by measured times: give a profile'):
            wrap(parameters(), composition)

    def test_ranks_that_would_plan_differently_are_refused(self):
        came = {'wide.weight': 4.0, 'narrow.weight': 3.0, 'bias': 2.0, 'scale': 1.0}

        def differing(engine):
            known = forecast(came, backward=4.0, start=100.0 * engine.rank, byte=1e-3)
            known = Forecast(known.timing, AllReduce(), known.codec)
            wrap(parameters(), dgc.dense(planner=Merged(known)), engine)

        with pytest.raises(dgc.HandshakeError, match='rank 1 and rank 0 differ in the division'):
            dgc.simulate(2, differing)


def test_rank_0s_numbers_reach_all_to_the_last_bit():
    def worker(engine):
        ours = {'a': [1 / 3, 2.5e-310], 'rank': engine.rank} if engine.rank == 0 else None
        return broadcast_json(engine, ours, torch.device('cpu'))

    assert dgc.simulate(3, worker) == [{'a': [1 / 3, 2.5e-310], 'rank': 0}] * 3
