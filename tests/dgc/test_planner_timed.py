"""Planners by times: what they measure, and what they make of it."""

from __future__ import annotations

import pytest
import torch
from dgc_helpers import forecast, parameters, request, wrap
from test_planner import SPARSE, names, plan, sized
from torch.nn import Parameter

import dgc
from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.calibration import calibrate_path, sizes
from dgc.codec import Codec
from dgc.composition import describe
from dgc.control import GraVAC, LGreCo
from dgc.costmodel import Line, Network
from dgc.exchanges import AllGather, AllReduce
from dgc.planner import Adaptive, BySize, Merged, MergedGreedily
from dgc.planner.broadcast import broadcast_json
from dgc.planner.forecast import FREE, Forecast, Route, Timing
from dgc.planner.timed import best_of
from dgc.profile import Profile
from dgc.rules import LayerRules
from dgc.schedule import DensitySchedule


def evenly(count):
    """The last of so many parameters, named after their place, comes first; one a second."""
    return {str(place): float(count - place) for place in range(count)}


def bucket_of(density, *numels):
    """Matrices of so many elements, named a, b, …"""
    members = [ParameterSpec(name, (n, 1)) for name, n in zip('abc', numels, strict=False)]
    return BucketSpec.of(members, None if density is None else DensitySchedule(density))


class TestMerged:
    @pytest.mark.parametrize('planner', [Merged, MergedGreedily])
    def test_between_the_extremes(self, planner):
        members = sized(1000, 1000, 1000)
        apart = plan(members, planner(forecast(evenly(3), start=0.0, byte=1e-3)))
        assert names(apart) == [['2'], ['1'], ['0']]
        at_once = plan(members, planner(forecast({}, start=1.0)))
        assert names(at_once) == [['2', '1', '0']]

    def test_the_order_is_that_in_which_gradients_came(self):
        came = forecast({'0': 1.0, '1': 3.0, '2': 2.0}, backward=3.0, byte=1e-3)
        assert names(plan(sized(1000, 1000, 1000), Merged(came))) == [['0'], ['2'], ['1']]

    def test_what_may_not_share_a_bucket_does_not(self):
        buckets = plan(parameters(), Merged(forecast({}, start=1.0)))
        assert sorted(map(sorted, names(buckets))) == [
            ['bias', 'scale'],
            ['narrow.weight', 'wide.weight'],
        ]
        assert {bucket.schedule for bucket in buckets} == {SPARSE, None}
        own = LayerRules(ratios={'wide.*': 0.1})
        assert len(plan(parameters(), Merged(forecast({}, start=1.0)), own)) == 3

    def test_lanes_are_divided_with_regard_to_each_other(self):
        """Alone, the scales would go in two: then the second has less to send at the end. But the
        matrices keep the network busy until then."""
        shapes = {'w': (1000, 1), 'late': (500,), 'early': (500,)}
        members = parameters(shapes)
        costs = {'dense': Route(FREE, Line(1.0, 1e-3)), 'start': 20.0}
        came = {'w': 3.0, 'early': 8.0, 'late': 10.0}
        known = forecast(came, **costs)
        alone = [each for each in members if each[0] != 'w']
        assert sorted(names(plan(alone, Merged(known)))) == [['early'], ['late']]
        assert sorted(names(plan(members, Merged(known)))) == [['early', 'late'], ['w']]

    @pytest.mark.parametrize('planner', [Merged, MergedGreedily])
    def test_a_density_for_every_layer_is_planned_at_once(self, planner):
        count = 60  # 2^60 ways, were each lane to be tried in two
        rules = LayerRules(ratios={f'{n}': 0.001 + n / 1e5 for n in range(count)})
        known = forecast(evenly(count), start=1.0, byte=1e-6)
        assert len(plan(sized(*[1000] * count), planner(known), rules)) == count

    def test_many_lanes_are_decided_one_by_one(self):
        counted = []

        def seconds(way):
            counted.append(way)
            return sum(way)

        assert [*best_of([[3, 1, 2]] * 12, seconds)] == [1] * 12
        assert len(counted) < 3**12 / 1000
        assert [*best_of([[3, 1], [1, 3]], lambda way: abs(sum(way) - 6))] == [3, 3]

    def test_parameters_without_elements_are_left_out(self):
        members = [('none', Parameter(torch.zeros(0, 3))), ('one', Parameter(torch.zeros(1, 1)))]
        assert names(plan(members, Merged(forecast({})))) == [['one']]

    def test_far_too_many_layers_are_merged_greedily(self, monkeypatch):
        monkeypatch.setattr('dgc.planner.timed.exact', None)  # would fail if it were called
        monkeypatch.setattr('dgc.planner.timed.AFFORDABLE', 2)
        assert len(plan(sized(10, 10, 10), Merged(forecast({}, start=1.0)))) == 1

    def test_the_extremes_are_predicted_beside_it(self):
        known = Merged(forecast(evenly(3), backward=3.0, start=0.1, byte=1e-3))
        asked = request(sized(1000, 1000, 1000))
        predicted = known.predicted(asked, known.plan(asked))
        assert list(predicted) == ['Merged', 'per tensor', 'whole model']
        assert predicted['Merged'] == min(predicted.values()) < max(predicted.values())
        assert BySize().predicted(asked, BySize().plan(asked)) == {}

    @pytest.mark.parametrize('planner', [Merged, MergedGreedily, Adaptive])
    def test_times_of_the_request_serve_as_well_as_the_planners_own(self, planner):
        known = forecast(evenly(3), backward=3.0, start=0.1, byte=1e-3)
        assert planner().needs_timing and not planner(known).needs_timing
        given = request(sized(1000, 1000, 1000), forecast=known)
        own = request(sized(1000, 1000, 1000))
        assert planner().plan(given) == planner(known).plan(own)
        assert planner().plan(given) == planner().plan(given)


class TestAdaptive:
    layer, codec = BucketSpec.of_shape(1000, 1), Codec('fp32', 'int32')
    # An element is sent to each of the 3 other ranks:
    bytes_each = (AllGather().bytes_sent(layer, 20, codec, 4)
                  - AllGather().bytes_sent(layer, 10, codec, 4)) / 10  # fmt: skip

    def densities(self, planner, members):
        return [bucket.density for bucket in plan(members, planner) if bucket.schedule]

    def test_as_much_as_hides_behind_the_next_layer(self):
        # Gaps of 1 s; an element takes 20 ms: 50 of them, less the message's head.
        costs = forecast(evenly(3), byte=0.02 / self.bytes_each)
        first, second, last = self.densities(Adaptive(costs), sized(1000, 1000, 1000))
        assert 0.04 < first == second <= 0.05
        assert last == SPARSE.density  # behind which nothing comes

    def test_never_above_its_bound_nor_below_the_schedule(self):
        fast, slow = forecast(evenly(2)), forecast(evenly(2), start=5.0)
        assert self.densities(Adaptive(fast, max_ratio=0.05), sized(1000, 1000))[0] == 0.05
        assert self.densities(Adaptive(slow), sized(1000, 1000)) == [0.01, 0.01]
        assert self.densities(Adaptive(fast, max_ratio=0.001), sized(1000, 1000)) == [0.01, 0.01]

    def test_compression_takes_its_part_of_the_time(self):
        busy = forecast(evenly(2), compress=Line(1.1, 0.0))
        assert self.densities(Adaptive(busy), sized(1000, 1000)) == [0.01, 0.01]

    def test_each_layer_by_itself_and_the_uncompressed_ones_together(self):
        buckets = plan(parameters(), Adaptive(forecast({})))
        assert sorted(map(len, names(buckets))) == [1, 1, 2]

    def test_what_the_run_asked_for_is_kept_beside_the_density(self):
        buckets = plan(sized(1000, 1000), Adaptive(forecast(evenly(2), start=1e-3), max_ratio=0.05))
        assert [(bucket.density, bucket.requested) for bucket in buckets] == [
            (0.05, 0.01),
            (0.01, 0.01),
        ]

    @pytest.mark.parametrize('bound', [0.0, -1.0, 1.5])
    def test_a_bound_that_is_none(self, bound):
        with pytest.raises(ValueError, match='max_ratio'):
            Adaptive(max_ratio=bound)


class TestForecast:
    def test_a_bucket_is_uncompressed_where_the_reducer_would_send_it_so(self):
        known = forecast({'w': 1.0}, byte=1.0, dense=Route(FREE, Line(7.0, 0.0)))
        assert known.bucket_times(bucket_of(0.5, 100)).network == 7.0
        assert known.bucket_times(bucket_of(None, 100)).network == 7.0
        assert known.bucket_times(bucket_of(0.01, 1000)).network > 100  # its bytes
        never = forecast({'w': 1.0}, sparse=None, dense=Route(FREE, Line(7.0, 0.0)))
        assert never.bucket_times(bucket_of(0.01, 100)).network == 7.0

    def test_sharing_a_bucket_costs_a_copy(self):
        known = forecast({'a': 1.0, 'b': 2.0}, copy=Line(0.0, 1.0), moving=Line(2.0, 0.5))
        alone, both = (
            known.bucket_times(bucket_of(0.01, 100)),
            known.bucket_times(bucket_of(0.01, 60, 40)),
        )
        assert (alone.ready, both.ready) == (1.0, 2.0)
        assert (alone.processor, both.processor) == (0.0, 100.0)
        assert both.moving == 2 + 0.5 * AllGather().bytes_sent(
            BucketSpec.of_shape(100), 1, Codec('fp32', 'int32'), 4
        )

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
        before = describe(composition)
        dgc.simulate(
            1, lambda engine: calibrate_path(composition, engine, 5000, torch.device('cpu'))
        )
        assert describe(composition) == before

    @pytest.mark.parametrize('control', [LGreCo(every=1), GraVAC(window=1)])
    def test_a_control_decides_nothing_meanwhile(self, control):
        composition = dgc.deep_gradient_compression(0.01, control=control)

        def worker(engine):
            return calibrate_path(composition, engine, 1 << 14, torch.device('cpu'))

        costs = dgc.simulate(2, worker, Network(alpha=2.0, beta=1e-3))[0]
        assert costs.sparse.exchange == pytest.approx((2.0, 1e-3), rel=1e-2)

    def test_uncompressed_training_has_no_sparse_route(self):
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
    def test_all_ranks_plan_alike_by_what_rank_0_measured(self, planner):
        def worker(engine):
            composition = dgc.deep_gradient_compression(0.02, planner=planner)
            return wrap(parameters(), composition, engine, profile=self.profile).plan

        plans = dgc.simulate(3, worker, Network(1e-3, 1e-8))
        assert plans[0] == plans[1] == plans[2]
        assert list(plans[0].predicted) == [type(planner).__name__, 'per tensor', 'whole model']

    def test_dense_gradients_are_merged_too(self):
        def worker(engine):
            return wrap(parameters(), dgc.dense(planner=Merged()), engine, profile=self.profile)

        plan = dgc.simulate(2, worker, Network(1.0, 0.0))[0].plan
        assert names(plan.buckets) == [['bias', 'narrow.weight', 'wide.weight', 'scale']]

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

        with pytest.raises(dgc.HandshakeError, match='rank 1 and rank 0 differ in the planner'):
            dgc.simulate(2, differing)


def test_rank_0s_numbers_reach_all_to_the_last_bit():
    def worker(engine):
        ours = {'a': [1 / 3, 2.5e-310], 'rank': engine.rank} if engine.rank == 0 else None
        return broadcast_json(engine, ours, torch.device('cpu'))

    assert dgc.simulate(3, worker) == [{'a': [1 / 3, 2.5e-310], 'rank': 0}] * 3
