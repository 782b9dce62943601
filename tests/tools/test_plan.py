"""Predictions: the arithmetic, and what is counted and measured for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

import dgc
from dgc import costmodel
from dgc.algorithms import ALGORITHMS, Kind
from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.codec import Codec
from dgc.compressors import Dense, SampledTopK, TopK
from dgc.costmodel import Calibration, Line, Network, Sample, calibrate
from dgc.exchanges import AllGather, AllReduce, GTopK, Hierarchical, OkTopK, SparDL
from dgc.profile import Profile
from tools.harness.algorithms import packed, training_exchanges
from tools.plan import calibration, path
from tools.plan.compositions import (
    UnfitError,
    comparison,
    compresses,
    has_density,
    sizes,
    unfit,
    with_exchange,
)
from tools.plan.counts import count, growth
from tools.plan.path import dense_line, sparse_line
from tools.plan.predict import (
    Counts,
    Growth,
    Measured,
    Part,
    Setting,
    extrapolate,
    predict,
)
from tools.plan.rounds import Rounds, rounds_of
from utils.training.averaging import (
    EveryStep,
    MomentumSums,
    OuterSteps,
    StreamingOuterSteps,
)

CODEC = Codec('fp32', 'int32')
NEAR = Network(1e-5, 1e-10)
FREE = Network(0.0, 0.0)
IDEAL = Calibration(FREE, FREE, 0.0)  # a host that moves bytes for nothing


def part_of(names, numel, density, sparse, dense) -> Part:
    """A bucket of parameters of these names, of equal sizes."""
    parameters = [ParameterSpec(name, (numel // len(names), 1)) for name in names]
    schedule = None if density is None else dgc.DensitySchedule(density)
    return Part(BucketSpec.of(parameters, schedule), sparse, dense)


def measured(parts, exchange=None, name='x', counts=None, **changes) -> Measured:
    growth_ = Growth({4: counts or Counts(rounds=3, share=1.0, handled=6, sends=3)})
    settings = {'compressor': TopK(), 'overlaps': True, 'optimizer': 1.0, **changes}
    return Measured(name, exchange or AllGather(), CODEC, parts=parts, growth=growth_, **settings)


class TestPrediction:
    step = Profile(forward=0.0, backward=10.0, arrivals={'late': 8.0, 'early': 5.0})

    def test_dense_by_hand(self):
        part = part_of(
            ['late', 'early'], numel=1000, density=None, sparse=None, dense=Line(0.5, 0.0)
        )
        host = Calibration(Network(alpha=0.1, beta=0.0), processor=FREE, error=0.0)
        found = predict(measured([part]), self.step, host, Setting(4, 8e3, 0.4), slowdown=1.0)
        # 8000 · 3/4 = 6000 bytes at 1000 a second, in 6 rounds of 0.5 s; from 8 s on, when the
        # backward pass, which goes on to 10 s, has the other half of the core.
        assert found == pytest.approx(8 + 2 * 0.5 + 6 * 0.5 + 6 + 1)

    def test_sparse_by_hand(self):
        part = part_of(['early'], numel=100_000, density=1e-4, sparse=Line(0.5, 0.1), dense=None)
        sent = 3 * CODEC.capacity(100_000, 10)
        found = predict(measured([part]), self.step, IDEAL, Setting(4, 8.0, 0.25), slowdown=1.0)
        assert found == pytest.approx(5 + 2 * (0.5 + 0.1 * 6) + 0.25 * 3 + sent + 1)

    def test_bytes_on_the_longest_way_count_as_often_as_they_travel(self):
        part = part_of(['early'], numel=100_000, density=1e-4, sparse=Line(0.0, 0.0), dense=None)
        tree = measured([part], GTopK(), counts=Counts(rounds=4, share=2.0, handled=5, sends=2))
        sent = 2 * CODEC.capacity(100_000, 10)
        found = predict(tree, self.step, IDEAL, Setting(4, 8.0, 0.0), slowdown=1.0)
        assert found == pytest.approx(5 + 2 * sent + 1)

    def test_a_fast_link_leaves_the_hosts_own_speed(self):
        part = part_of(['late'], numel=1000, density=None, sparse=None, dense=Line(0.0, 0.0))
        host = Calibration(Network(alpha=0.0, beta=1e-3), processor=FREE, error=0.0)
        found = predict(measured([part]), self.step, host, Setting(4, math.inf, 0.0), slowdown=1.0)
        assert found == pytest.approx(8 + 6 + 1)

    def test_sharing_slows_what_the_processor_does_and_no_link(self):
        part = part_of(['late'], numel=1000, density=None, sparse=None, dense=Line(0.5, 0.0))
        host = Calibration(Network(alpha=0.1, beta=0.0), processor=FREE, error=0.0)
        shared = Setting(4, 8e3, 0.4, sharing=2.0)
        found = predict(measured([part]), self.step, host, shared, slowdown=2.0)
        assert found == pytest.approx(2 * 8 + 2 * (2 * 0.5) + 6 * (2 * 0.1 + 0.4) + 6 + 2 * 1)

    def test_messages_and_bytes_take_the_core_from_the_backward_pass(self):
        part = part_of(['early'], numel=1000, density=None, sparse=None, dense=Line(0.0, 0.0))
        host = Calibration(FREE, processor=Network(alpha=0.5, beta=1e-3), error=0.0)
        found = predict(measured([part]), self.step, host, Setting(4, math.inf, 0.0), slowdown=1.0)
        assert found == pytest.approx(10 + 6 * 0.5 + 6 + 1)  # 6 messages, of 6000 bytes in all

    def test_many_small_buckets_cost_more_messages_than_one(self):
        host = Calibration(FREE, processor=Network(alpha=0.5, beta=0.0), error=0.0)
        among = partial(predict, step=self.step, host=host, slowdown=1.0)
        part = part_of(['early'], numel=100_000, density=1e-4, sparse=Line(0.0, 0.0), dense=None)
        one, three = (
            among(measured([part] * count), setting=Setting(4, math.inf, 0.0, sharing=2.0))
            for count in (1, 3)
        )
        assert one == pytest.approx(10 + 2 * 3 * 0.5 + 1)
        assert three == pytest.approx(10 + 3 * (2 * 3 * 0.5) + 1)

    def test_what_needs_all_gradients_waits_for_them(self):
        part = part_of(['early'], numel=1000, density=None, sparse=None, dense=Line(0.5, 0.0))
        late = measured([part], overlaps=False)
        found = predict(late, self.step, IDEAL, Setting(4, math.inf, 0.0), slowdown=1.0)
        assert found == pytest.approx(10.5 + 1)

    def test_a_parameter_without_gradient_comes_at_the_end(self):
        part = part_of(
            ['early', 'unused'], numel=8, density=None, sparse=None, dense=Line(0.5, 0.0)
        )
        found = predict(measured([part]), self.step, IDEAL, Setting(4, math.inf, 0.0), slowdown=1.0)
        assert found == pytest.approx(10.5 + 1)

    def test_a_bucket_is_dense_where_the_reducer_would_send_it_so(self):
        part = part_of(['late'], numel=1000, density=0.1, sparse=Line(0, 0), dense=Line(0.25, 0))
        some = Growth({size: Counts(size - 1, 1.0, size + 2, size - 1) for size in (2, 4, 8)})
        gathered = Measured('x', AllGather(), CODEC, TopK(), True, 1.0, [part], some)
        among = partial(predict, gathered, self.step, IDEAL, slowdown=1.0)
        assert among(Setting(2, math.inf, 0.0)) == pytest.approx(10 + 1)  # at 8 s, and free
        dense_bytes = 8 * 1000 * 63 / 64
        expected = 8 + 2 * 0.25 + dense_bytes / 1e3 + 1
        assert among(Setting(64, 8e3, 0.0)) == pytest.approx(expected)


class TestRounds:
    """Local steps: 9.5 s of an exchange, of which the network takes 9, are shared by a round."""

    part = part_of(['late', 'early'], numel=1000, density=None, sparse=None, dense=Line(0.5, 0.0))
    host = Calibration(Network(alpha=0.1, beta=0.0), processor=FREE, error=0.0)
    place = Setting(4, 8e3, 0.4)

    def seconds(self, rounds, backward, slowdown=1.0):
        step = Profile(0.0, backward, {'late': 0.8 * backward, 'early': 0.5 * backward})
        local = measured([self.part], rounds=rounds, outer=2.0)
        return predict(local, step, self.host, self.place, slowdown)

    def test_a_round_is_shared_by_its_steps(self):
        assert self.seconds(Rounds(5), 10.0) == pytest.approx(10 + 1 + (9.5 + 2) / 5)

    def test_a_slower_host_takes_longer_for_steps_and_updates(self):
        assert self.seconds(Rounds(5), 10.0, 2.0) == pytest.approx(20 + 2 + (9.5 + 4) / 5)

    def test_fragments_travel_during_further_steps(self):
        hidden = self.seconds(Rounds(5, fragments=2, delay=1), 10.0)
        assert hidden == pytest.approx(10 + 1 + (0.5 + 2) / 5)
        waited = self.seconds(Rounds(5, fragments=2, delay=2), 1.0)
        assert waited == pytest.approx(1 + 1 + (0.5 + 2 * (4.5 - 4) + 2) / 5)

    def test_no_more_than_the_steps_of_a_round_hide_what_travels(self):
        found = self.seconds(Rounds(4, fragments=3, delay=2), 1.0)
        assert found == pytest.approx(1 + 1 + (0.5 + (9 - 4 * 2) + 2) / 4)

    def test_rounds_of_one_step_cost_the_whole_exchange(self):
        assert self.seconds(Rounds(1), 10.0) == pytest.approx(10 + 1 + 9.5 + 2)


@pytest.mark.parametrize(
    ('averaging', 'expected'),
    [
        (EveryStep(), None),
        (OuterSteps(every=20, after=7), Rounds(20, 1, 0, 0.9, True, 7)),
        (OuterSteps(every=20, lr=1.0, momentum=0.0, nesterov=False), Rounds(20)),
        (StreamingOuterSteps(every=20, fragments=4, delay=3), Rounds(20, 4, 3, 0.9, True)),
        (OuterSteps(every=0), 'averaging.every is at least 1, got 0'),
        (StreamingOuterSteps(fragments=0), 'averaging.fragments is at least 1, got 0'),
        (StreamingOuterSteps(every=5, delay=5), 'averaging.delay is at least 0 and below every'),
        (OuterSteps(moments={'exp_avg': 60}), 'averages of moments'),
        (MomentumSums(), 'steps of ZeroOneAdam'),
    ],
)
def test_a_stack_says_its_rounds(averaging, expected):
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            rounds_of(averaging)
    else:
        assert rounds_of(averaging) == expected


@pytest.mark.parametrize('name', ['diloco', 'sparse-loco'])
def test_only_the_own_composition_exchanges_movements(name):
    compared = comparison(ALGORITHMS[name].make, Rounds(30))
    assert {each.name: each.rounds for each in compared.candidates if each.rounds} == {
        'yours': Rounds(30)
    }
    assert {*training_exchanges()} < {each.name for each in compared.candidates}
    assert 'movements of 30 local steps' in compared.notes[0]


def test_the_buckets_of_fragments_are_planned():
    compared = comparison(ALGORITHMS['streaming-diloco'].make, Rounds(30, 3, 5, after=9))
    assert compared.own().planner.count == 3
    assert 'the first 9 steps' in compared.notes[0]


def tiny(sparse: bool) -> Measured:
    """A model of 100,000 parameters, whose compression costs 3 ms."""
    density = 1e-3 if sparse else None
    part = part_of(['w'], 100_000, density, Line(3e-3, 1e-5) if sparse else None, Line(1e-4, 0.0))
    counted = {size: Counts(size - 1, 1.0, size + 2, size - 1) for size in (2, 4, 8, 16)}
    name = 'yours' if sparse else 'dense'
    exchange = AllGather() if sparse else AllReduce()
    return Measured(name, exchange, CODEC, TopK(), True, 1e-3, [part], Growth(counted))


@pytest.mark.parametrize(('rate', 'winner'), [(1e7, 'yours'), (1e11, 'dense')])
def test_dense_wins_on_a_fast_network_and_compression_on_a_slow_one(rate, winner):
    step, host = Profile(0.0, 1e-2, {'w': 8e-3}), Calibration(NEAR, NEAR, 0.0)
    times = {
        each.name: predict(each, step, host, Setting(4, rate, 1e-5), slowdown=1.0)
        for each in (tiny(sparse=True), tiny(sparse=False))
    }
    assert min(times, key=times.__getitem__) == winner


class TestExtrapolation:
    few = (2, 4, 8, 16)

    @pytest.mark.parametrize(
        ('grows', 'expected'),
        [
            (lambda p: p - 1, 1023),
            (lambda p: 2 * math.log2(p), 20),
            (lambda p: 3 * math.log2(p) + p, 1054),
            (lambda p: 0, 0),
        ],
    )
    def test_known_growth_is_met_exactly(self, grows, expected):
        assert extrapolate(self.few, [grows(p) for p in self.few], 1024) == pytest.approx(expected)

    def test_what_was_counted_counts(self):
        counted = {3: Counts(9, 1.0, 9, 9), 2: Counts(1, 2.0, 1, 1), 4: Counts(2, 2.0, 2, 2)}
        assert Growth(counted).at(3) == Counts(9, 1.0, 9, 9)
        beyond = Growth(counted).at(8)  # from 2 and 4, not from 3
        assert beyond.share == 2.0 and beyond.rounds == pytest.approx(beyond.handled)
        assert beyond.rounds == pytest.approx(beyond.sends)
        assert beyond.rounds < 9

    def test_a_line_goes_through_its_points_and_never_falls(self):
        def fit(*points):
            return Line.through(points)[0]

        assert fit((1.0, 5.0), (2.0, 7.0), (4.0, 11.0)) == pytest.approx(Line(3.0, 2.0))
        # The constant with the least relative errors: Σ(1/y) / Σ(1/y²).
        assert fit((1.0, 5.0), (3.0, 3.0)) == pytest.approx(Line(60 / 17, 0.0))
        assert fit((0.0, 5.0), (0.0, 7.0)) == pytest.approx(Line(210 / 37, 0.0))
        assert fit((4.0, 5.0)) == pytest.approx(Line(5.0, 0.0))
        assert fit((1.0, 0.0), (2.0, 10.0)).fixed == 0.0


class TestCounts:
    """Rounds, bytes on the longest way over those sent, messages sent and handled."""

    @pytest.mark.parametrize(
        ('name', 'workers', 'rounds', 'share', 'sends'),
        [
            ('all-gather', 4, 3, 1.0, 3),
            ('gtopk', 8, 6, 2.0, 3),
            ('gtopk', 3, 3, 1.5, 2),
            ('gtopk-doubling', 8, 3, 1.0, 3),
            ('spardl', 8, 6, 1.0, 6),
            ('chunk', 4, 12, 1.0, 12),
        ],
    )
    def test_as_the_papers_have_them(self, name, workers, rounds, share, sends):
        counts = count(with_exchange(packed, training_exchanges()[name]), workers)
        assert (counts.rounds, counts.sends) == (rounds, sends)
        assert counts.share == pytest.approx(share, abs=1e-3)

    def test_oktopk_sends_less_than_it_may(self):
        counts = count(with_exchange(packed, OkTopK), 4)
        assert 2 * 3 < counts.rounds <= 4 * 3 and 0.5 < counts.share < 1

    def test_a_gather_writes_its_own_message_and_reads_all(self):
        assert count(packed, 5).handled == 1 + 5

    def test_they_grow_to_thousands(self):
        found = growth(packed, [3, 1024])
        assert sorted(found.counted) == [2, 3, 4, 8, 16]
        thousand = found.at(1024)
        assert thousand == pytest.approx(Counts(1023, 1, 1025, 1023))


def bucket(numel=20_000, density=0.01, members=1) -> BucketSpec:
    parameters = [ParameterSpec(f'w{number}', (numel // members,)) for number in range(members)]
    return BucketSpec.of(parameters, dgc.DensitySchedule(density, warmup_epochs=3))


class TestPath:
    @pytest.mark.parametrize('members', [1, 2])
    def test_what_a_worker_of_four_does(self, members):
        handled, seconds = path.point(packed, bucket(members=members), 4, 0.01)
        assert handled == 5 and 0 < seconds < 1

    def test_a_gather_costs_more_the_more_there_are(self):
        times = [path.point(packed, bucket(), workers, 0.01) for workers in (2, 16)]
        assert [handled for handled, _ in times] == [3, 17]
        assert times[0][1] < times[1][1]
        line = sparse_line(packed, bucket())
        assert line.fixed >= 0 and line.at(6) > 0

    def test_dense_handles_no_message(self):
        line = dense_line(packed, bucket())
        assert line.fixed > 0 and line.each == 0

    def test_memory_decides_how_many_are_simulated(self, monkeypatch):
        among = []

        def point(make, spec, workers, density):
            among.append(workers)
            return workers, 1.0

        monkeypatch.setattr(path, 'point', point)
        monkeypatch.setattr(path, 'free_memory', lambda: 5 * path.BYTES * 20_000 / path.SHARE)
        sparse_line(packed, bucket())
        assert among == [2, 4]
        monkeypatch.setattr(path, 'free_memory', lambda: 1000.0)
        with pytest.raises(UnfitError, match='plan on a larger machine'):
            sparse_line(packed, bucket())
        with pytest.raises(UnfitError, match='of 20,000 elements'):
            dense_line(packed, bucket())

    def test_threads_are_as_before(self):
        before = torch.get_num_threads()
        path.point(packed, bucket(), 2, 0.01)
        assert torch.get_num_threads() == before


class TestCompositions:
    def test_a_dense_stack_is_compared_with_a_usual_one(self):
        candidates, notes = comparison(dgc.dense)
        assert [each.name for each in candidates] == ['dense', *training_exchanges()]
        assert 'your stack is dense' in notes[0] and '0.1%' in notes[0]
        every = [each.make() for each in candidates[1:]]
        assert {each.codec.values for each in every} == {'int8'}

    def test_the_users_own_is_there_once(self):
        yours = partial(dgc.deep_gradient_compression, 0.01, warmup_epochs=5)
        candidates, notes = comparison(yours)
        names = [each.name for each in candidates]
        assert names[:2] == ['dense', 'yours'] and 'all-gather' not in names and notes == []
        assert {each.make().schedule.density for each in candidates[1:]} == {0.01}

    def test_other_settings_of_the_same_exchange_are_compared(self):
        candidates, _ = comparison(partial(packed_with, lambda: SparDL(compressor=TopK())))
        assert {'yours', 'spardl'} < {each.name for each in candidates}

    def test_the_compressor_fits_the_exchange(self):
        selects = with_exchange(packed, training_exchanges()['spardl'])()
        assert isinstance(selects.compressor, Dense)
        back = with_exchange(lambda: selects, AllGather)()
        assert isinstance(back.compressor, SampledTopK)

    @pytest.mark.parametrize(
        'name', [name for name, each in ALGORITHMS.items() if each.kind is Kind.SYNCHRONOUS]
    )
    def test_every_algorithm_of_the_table_can_be_a_stack(self, name):
        stack = ALGORITHMS[name].composition
        candidates, notes = comparison(stack)
        every = [each.make() for each in candidates]  # whose parts fit together
        assert not any(each.planner.needs_timing for each in every)
        assert any('at 0.1%' in note for note in notes) != has_density(stack())
        first, second, *others = [each.name for each in candidates]
        assert first == 'dense' and len(others) > 5
        assert second == ('yours' if compresses(stack()) else 'all-gather')

    @pytest.mark.parametrize(
        ('name', 'rounds'),
        [('sign-sgd', 3), ('qsgd', 3), ('random-k', 6), ('power-sgd', 12), ('demo', 3)],
    )
    def test_other_messages_are_counted_and_measured(self, name, rounds):
        make = ALGORITHMS[name].composition
        counts = count(make, 4)
        assert counts.rounds == rounds and counts.share == pytest.approx(1, abs=1e-3)
        spec = BucketSpec.of_shape(200, 100, schedule=make().schedule)
        handled, seconds = path.point(make, spec, 4, spec.density)
        assert handled == counts.handled and 0 < seconds < 1

    def test_machines_stand_for_the_workers_inside_them(self):
        candidates, notes = comparison(partial(packed_with, lambda: Hierarchical(GTopK(), 2)))
        yours = next(each for each in candidates if each.name == 'yours')
        assert isinstance(yours.make().exchange, GTopK)
        assert 'a worker here is a machine' in notes[0]

    def test_numbers_of_workers_that_an_exchange_serves(self):
        assert sizes(AllGather(), 3) == [2, 4, 8]
        assert sizes(SparDL(teams=3), 3) == [3, 6, 12]
        assert 'teams=3 does not divide 4' in unfit(SparDL(teams=3), 4)
        assert unfit(SparDL(teams=3), 1023) == ''
        with pytest.raises(UnfitError, match='teams=37 does not divide'):
            sizes(SparDL(teams=37), 1)


def packed_with(exchange: Callable):
    return dgc.deep_gradient_compression(0.01, exchange=exchange())


class TestCalibration:
    def test_what_fits_is_found(self):
        network = Network(alpha=1e-4, beta=2e-9)
        samples = [
            Sample(messages, sent, messages * network.alpha + sent * network.beta, 0.0)
            for messages, sent in [(1, 1e3), (2, 1e3), (1, 1e6), (2, 1e7)]
        ]
        found, error = costmodel.fit(samples, [each.seconds for each in samples])
        assert found.alpha == pytest.approx(1e-4) and found.beta == pytest.approx(2e-9)
        assert error == pytest.approx(0, abs=1e-9)

    def test_all_workers_find_the_same(self):
        ranks = dgc.simulate(2, lambda engine: calibrate(engine, sizes=[1000, 100_000], repeats=3))
        assert ranks[0] == ranks[1]
        assert min(ranks[0].network.alpha, ranks[0].processor.alpha, ranks[0].processor.beta) >= 0

    def test_it_is_kept(self, tmp_path, monkeypatch):
        made = Calibration(Network(1e-4, 1e-9), Network(5e-5, 5e-10), 0.1)
        monkeypatch.setattr(calibration, 'measure', lambda: made)
        assert calibration.obtain(tmp_path / 'host.json') == made
        monkeypatch.setattr(calibration, 'measure', None)
        assert calibration.obtain(tmp_path / 'host.json') == made

    @pytest.mark.slow
    def test_two_processes_measure_it(self, warm_python):
        found = calibration.measure()
        assert 0 < found.network.alpha < 0.1 and 0 < found.network.beta < 1e-6
        assert 0 < found.processor.alpha < 0.1 and 0 < found.processor.beta < 1e-6
        assert found.error < 2
