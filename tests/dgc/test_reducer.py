"""The order of the buckets, the choice between compressed and uncompressed, and what is counted."""

import copy
import itertools

import pytest
import torch
from dgc_helpers import exact, keep_count, loss, parameters, set_gradients, train, values, wrap
from state_helpers import assert_same

import dgc
from dgc.clipping import ClipByGlobalNorm
from dgc.codec import Codec
from dgc.engines import LocalEngine
from dgc.exchanges import PowerSGD, RandomK
from dgc.memory import Residual
from dgc.schedule import DensitySchedule


class Recorder(LocalEngine):
    """Notes the size of every collective."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def all_reduce(self, tensor):
        self.calls.append(tensor.numel())
        return super().all_reduce(tensor)

    def all_gather(self, tensor):
        self.calls.append(tensor.numel())
        return super().all_gather(tensor)


THREE = {'a': (10, 10), 'b': (20, 10), 'c': (30, 10)}


class TestOrder:
    def start(self, order, composition=None):
        """The sizes that were sent after each gradient, which came in this order, and by step()."""
        named, engine = parameters(THREE), Recorder()
        optimizer = wrap(named, composition or exact(0.02), engine)
        engine.calls.clear()
        sent = []
        for name in order:
            set_gradients(named, {name: torch.ones(THREE[name])})
            sent.append(len(engine.calls))
        optimizer.step()
        return sent, engine.calls

    def test_buckets_go_as_soon_as_they_may_from_the_last_parameter_to_the_first(self):
        assert self.start('cba')[0] == [1, 2, 3]

    def test_a_bucket_waits_for_those_before_it(self):
        assert self.start('abc')[0] == [0, 0, 3]
        assert self.start('bca')[0] == [0, 2, 3]

    def test_a_parameter_that_takes_no_part_holds_later_ones_until_the_step(self):
        sent, calls = self.start('ca')
        assert sent == [1, 1]
        assert len(calls) == 3

    @pytest.mark.parametrize('order', ['cba', 'abc', 'bac', 'a', ''])
    def test_the_collectives_are_the_same_whatever_came_when(self, order):
        """grace#7."""
        assert self.start(order)[1] == self.start('cba')[1]
        assert len(set(self.start(order)[1])) == 3

    @pytest.mark.parametrize('order', ['cba', 'abc', 'bca', 'ca', ''])
    def test_skip_overlaps_with_the_backward_pass_and_needs_no_further_collective(self, order):
        assert self.start(order, exact(0.02, nonfinite='skip')) == self.start(order)


class TestRoute:
    """A bucket whose compressed messages would not be smaller is sent uncompressed."""

    @pytest.mark.parametrize('size', [1, 2, 3, 5])
    @pytest.mark.parametrize('types', [('fp32', 'int64'), ('fp16', 'int32')])
    @pytest.mark.parametrize('density', [0.02, 0.1, 0.2, 0.3, 0.4, 0.6, 0.9])
    def test_the_smaller_one_is_taken(self, size, types, density):
        codec = Codec(*types)

        def worker(engine):
            named = parameters({'w': (32, 32)})
            optimizer = wrap(named, exact(density, codec=codec), engine)
            train(optimizer, named, 1, engine.rank)
            return optimizer.reducer.progress.sent_elements

        k, counted = keep_count(1024, density), max(size, 2)
        sparse = (counted - 1) * codec.capacity(1024, k)
        dense = 2 * 4 * 1024 * (counted - 1) / counted
        assert dgc.simulate(size, worker) == [k if sparse < dense else 1024] * size

    def test_an_uncompressed_step_flushes_the_velocity_of_a_sparse_phase(self):
        named = parameters({'w': (32, 32)})
        composition = exact(0.9, warmup_epochs=1, warmup_coeff=[0.02], warmup_stage_steps=3)
        optimizer = wrap(named, composition)
        train(optimizer, named, 3)
        velocity = optimizer.reducer.buckets[0].buffers['velocity']
        assert velocity.count_nonzero() > 900
        train(optimizer, named, [3])
        assert not velocity.any()


class TestProgress:
    def test_it_counts_elements_and_bytes_in_closed_form(self):
        def worker(engine):
            named = parameters()
            optimizer = wrap(named, exact(0.02), engine)
            train(optimizer, named, 4, engine.rank)
            return optimizer.reducer.progress

        codec, k = Codec(), [keep_count(n, 0.02) for n in (1280, 160)]
        dense = [round(2 * 2 / 3 * 4 * n) for n in (1280, 160, 11)]
        sparse = sum(2 * codec.capacity(n, kept) for n, kept in zip((1280, 160), k, strict=True))
        for progress in dgc.simulate(3, worker):
            assert progress.steps == 4
            assert progress.elements == 4 * (1280 + 160 + 11)
            assert progress.sent_elements == 4 * (sum(k) + 11)
            assert progress.sent == progress.received == 4 * (sparse + dense[2])
            assert progress.dense_sent == 4 * sum(dense)

    def test_start_up_and_clipping_are_not_counted_as_gradients(self):
        def worker(engine):
            named = parameters()
            clipping = dgc.clipping.ClipByGlobalNorm(1.0)
            optimizer = wrap(named, dgc.dense(gradient_clipping=clipping), engine)
            assert engine.traffic.received > 0
            assert optimizer.reducer.progress.sent == 0
            train(optimizer, named, 1, engine.rank)
            return optimizer.reducer.progress.sent

        assert dgc.simulate(2, worker) == [4 * (1280 + 160 + 11)] * 2

    def test_one_rank_sends_nothing(self):
        named = parameters()
        optimizer = wrap(named, exact(0.02))
        train(optimizer, named, 2)
        progress = optimizer.reducer.progress
        assert progress.sent == progress.received == progress.dense_sent == 0
        assert 0 < progress.sent_elements < progress.elements

    def test_times_are_counted(self):
        def worker(engine):
            named = parameters()
            optimizer = wrap(named, exact(0.02), engine)
            train(optimizer, named, 3, engine.rank)
            return optimizer.reducer.progress

        for progress in dgc.simulate(2, worker):
            assert progress.communicate > 0
            assert progress.compress > 0
            assert progress.wait > 0


def test_a_failing_engine_fails_the_step():
    """horovod#642: the cause reaches the training loop, and nothing hangs."""

    class Broken(LocalEngine):
        has_thread = True
        broken = False

        def _all_gather(self, tensor):
            if self.broken:
                raise dgc.EngineError('connection reset by rank 1')
            return super()._all_gather(tensor)

    named, engine = parameters(), Broken()
    optimizer = wrap(named, exact(0.02), engine)
    engine.broken = True
    loss(named, 0, 0).backward()
    with pytest.raises(dgc.EngineError, match='connection reset by rank 1'):
        optimizer.step()


STATEFUL = {
    'dgc int8': lambda: dgc.deep_gradient_compression(0.02, values='int8', nonfinite='skip'),
    'dgc clipped': lambda: exact(0.02, nonfinite='skip', gradient_clipping=ClipByGlobalNorm(1.0)),
    'oktopk': lambda: dgc.ALGORITHMS['oktopk'].make(0.02, 3, 4, nonfinite='skip'),
    'gtopk': lambda: dgc.ALGORITHMS['gtopk'].make(0.02, nonfinite='skip'),
    'hierarchical': lambda: dgc.ALGORITHMS['hierarchical'].make(
        0.02, local_size=3, nonfinite='skip'
    ),
    'powersgd': lambda: dgc.Composition(
        memory=Residual(), exchange=PowerSGD(2), schedule=DensitySchedule(1.0), nonfinite='skip'
    ),
    'random-k': lambda: dgc.Composition(
        memory=Residual(), exchange=RandomK(), schedule=DensitySchedule(0.1), nonfinite='skip'
    ),
}


@pytest.mark.parametrize('make', STATEFUL.values(), ids=STATEFUL)
def test_with_skip_a_step_in_which_the_engine_fails_leaves_all_state_as_before(make):
    """Whichever of the step's collectives fails; and the step may be repeated."""

    def worker(engine, failures):
        named, composition = parameters(), make()
        momentum = 0.9 if composition.memory.holds_momentum else 0.0
        optimizer = wrap(named, composition, engine, momentum=momentum)
        train(optimizer, named, 3, engine.rank)
        calls = 0
        while failures:
            before, parameters_before = copy.deepcopy(optimizer.state_dict()), values(named)
            fail_at_call(engine, calls)
            optimizer.zero_grad()
            loss(named, engine.rank, 3).backward()
            try:
                optimizer.step()
            except dgc.EngineError as error:
                assert 'connection reset' in str(error)
            else:
                break
            finally:
                del engine._call
            assert_same(optimizer.state_dict(), before)
            assert_same(values(named), parameters_before)
            optimizer.load_state_dict(before)
            calls += 1
        if not failures:
            train(optimizer, named, [3], engine.rank)
        train(optimizer, named, [4], engine.rank)
        return values(named), optimizer.state_dict(), calls, len(optimizer.buckets)

    disturbed = dgc.simulate(3, lambda engine: worker(engine, failures=True))
    undisturbed = dgc.simulate(3, lambda engine: worker(engine, failures=False))
    for ours, theirs in zip(disturbed, undisturbed, strict=True):
        assert ours[2] >= ours[3]  # at least one collective for each bucket
        assert_same(ours[:2], theirs[:2])


def test_with_skip_a_step_that_cannot_be_submitted_leaves_all_state_as_before():
    """The engine is closed after the first bucket."""

    class Closing(LocalEngine):
        jobs = None

        def submit(self, job):
            if self.jobs == 1:
                raise dgc.EngineError('the engine is closed')
            self.jobs = None if self.jobs is None else self.jobs + 1
            return super().submit(job)

    named, engine = parameters(), Closing()
    optimizer = wrap(named, exact(nonfinite='skip'), engine)
    train(optimizer, named, 3)
    before = copy.deepcopy(optimizer.state_dict())
    for _, parameter in named:
        parameter.grad = None
    engine.jobs = 0
    with pytest.raises(dgc.EngineError, match='is closed'):
        optimizer.step()
    assert_same(optimizer.state_dict(), before)


def fail_at_call(engine, number):
    """Let this call of a collective fail, counted from now."""
    calls, call = itertools.count(), type(engine)._call

    def failing(*arguments):
        if next(calls) == number:
            raise dgc.EngineError('connection reset')
        return call(engine, *arguments)

    engine._call = failing


@pytest.mark.parametrize('gradient', [0.0, 1.0])
def test_nothing_or_everything_passes_the_threshold(gradient):
    """grace#16, pytorch#27542: two ranks, all-zero or constant gradients; the step finishes."""

    def worker(engine):
        named = parameters({'w': (50, 20)})
        optimizer = wrap(named, dgc.deep_gradient_compression(0.01), engine)
        for _ in range(3):
            optimizer.zero_grad()
            set_gradients(named, {'w': torch.full((50, 20), gradient)})
            optimizer.step()
        return optimizer.steps, optimizer.reducer.progress.sent_elements

    for steps, sent in dgc.simulate(2, worker):
        assert steps == 3
        assert sent == (30 if gradient else 0)


def test_a_rank_whose_threshold_nothing_passes_among_others():
    def worker(engine):
        named = parameters({'w': (50, 20)})
        before = named[0][1].detach().clone()
        optimizer = wrap(named, dgc.deep_gradient_compression(0.01), engine, lr=1.0)
        gradient = torch.zeros(50, 20)
        if engine.rank == 1:
            gradient[3, 4] = 6.0
        set_gradients(named, {'w': gradient})
        optimizer.step()
        return before - named[0][1].detach()

    for moved in dgc.simulate(3, worker):
        assert moved[3, 4] == pytest.approx(2.0)
        assert moved.count_nonzero() == 1
