"""Horovod's interface on our wrapper: what its tests of DistributedOptimizer ask, written anew.

docs/interfaces.md lists those tests, and which of ours stands for each.
"""

from __future__ import annotations

import copy
import gc
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from dgc_helpers import exact, loss, parameters, set_gradients, train, values, wrap
from torch import nn
from torch.nn import Parameter

import dgc
from dgc.engines import LocalEngine
from dgc.memory import Residual

HOROVOD = {name: number for number, name in enumerate(['Average', 'Sum', 'Adasum'])}  # its numbers


def sgd(named, **settings):
    return torch.optim.SGD([parameter for _, parameter in named], **{'lr': 0.1} | settings)


class TestNames:
    def test_without_names_training_is_the_same(self):
        def worker(engine):
            named, unnamed = parameters(), parameters()
            for each, given in ((named, named), (unnamed, None)):
                inner = dgc.DGCSGD([p for _, p in each], lr=0.1, momentum=0.9)
                optimizer = dgc.DistributedOptimizer(inner, given, exact(), engine)
                train(optimizer, each, 4, engine.rank)
                optimizer.detach()
            return values(named), values(unnamed)

        for named, unnamed in dgc.simulate(2, worker):
            assert all(map(torch.equal, named, unnamed))

    def test_local_steps_need_none_either(self):
        named = parameters()
        optimizer = dgc.LocalSteps(sgd(named), sgd(named), engine=LocalEngine(), every=1)
        train(optimizer, named, 2)
        assert optimizer.buckets[0].spec.names[0].endswith(' of group 0')

    def test_they_are_unique_and_the_same_on_all_ranks(self):
        def worker(engine):
            layers = [nn.Linear(10, 10), nn.Linear(10, 10)]
            inner = torch.optim.SGD([{'params': each.parameters()} for each in layers], lr=0.1)
            optimizer = dgc.DistributedOptimizer(inner, engine=engine)
            return sorted(name for bucket in optimizer.buckets for name in bucket.spec.names)

        found = dgc.simulate(3, worker)
        wanted = [f'parameter {index} of group {group}' for index in (0, 1) for group in (0, 1)]
        assert found == [sorted(wanted)] * 3

    def test_a_frozen_parameter_of_whole_numbers_is_left_alone(self):
        """test_broadcast_state_no_grad."""
        numbers = Parameter(torch.tensor([1, 3], dtype=torch.int32), requires_grad=False)
        weight = Parameter(torch.ones(4))
        inner = torch.optim.SGD([numbers, weight], lr=0.1)
        optimizer = dgc.DistributedOptimizer(inner, None, dgc.dense(), LocalEngine())
        weight[numbers.long()].sum().backward()
        optimizer.step()
        assert numbers.tolist() == [1, 3]
        assert numbers.grad is None
        torch.testing.assert_close(weight.detach(), torch.tensor([1.0, 0.9, 1.0, 0.9]))


class TestSettings:
    @pytest.mark.parametrize(
        'settings',
        [
            {'op': HOROVOD['Average']},
            {'backward_passes_per_step': 1},
            {'gradient_predivide_factor': 1.0},
            {'num_groups': 0, 'groups': None},
            {'process_set': SimpleNamespace(process_set_id=0)},
            {'sparse_as_dense': False},
            {'sparse_as_dense': True},
        ],
        ids=str,
    )
    def test_what_is_done_here_anyway_is_accepted(self, settings):
        named, plain = parameters(), parameters()
        train(wrap(named, dgc.dense(), **settings), named, 2)
        train(sgd(plain), plain, 2)
        torch.testing.assert_close(values(named), values(plain), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ('settings', 'message'),
        [
            ({'op': HOROVOD['Sum']}, 'mean over the ranks: for hvd.Sum multiply the learning rate'),
            ({'op': HOROVOD['Adasum']}, 'hvd.Adasum is not implemented'),
            ({'compression': object()}, 'write composition=dgc.dense() for none'),
            ({'gradient_predivide_factor': 2.0}, 'divided once: leave it out'),
            ({'num_groups': 2}, 'a planner divides the parameters into buckets'),
            ({'groups': [[]]}, 'a planner divides the parameters into buckets'),
            ({'process_set': SimpleNamespace(process_set_id=1)}, 'write engine=TorchEngine(group='),
            ({'sparse_as_dense': 'yes'}, 'are always averaged as dense ones'),
            ({'backward_passes_per_step': 0}, 'batches_per_step must be at least 1, got 0'),
        ],
        ids=lambda given: '' if isinstance(given, str) else ' '.join(given),
    )
    def test_what_is_not_is_refused_in_one_line_with_what_to_use(self, settings, message):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            wrap(parameters(), dgc.dense(), **settings)
        assert next(iter(settings)) in str(caught.value) or 'batches_per_step' in str(caught.value)
        assert '\n' not in str(caught.value)

    def test_a_misspelled_setting_is_a_type_error(self):
        with pytest.raises(TypeError, match="has no setting 'compositon'"):
            wrap(parameters(), dgc.dense(), compositon=dgc.dense())


class TestBackwardPassesPerStep:
    """Gradients of the passes are summed, as by Horovod for PyTorch, and averaged over ranks."""

    def test_the_sum_of_the_passes_is_averaged(self):
        def worker(engine):
            named = parameters({'w': (2, 2)})
            optimizer = wrap(named, dgc.dense(), engine, backward_passes_per_step=3)
            for number in range(3):
                set_gradients(named, {'w': torch.full((2, 2), float(number + 10 * engine.rank))})
            optimizer.synchronize()
            return named[0][1].grad.tolist()

        assert dgc.simulate(2, worker) == [[[18.0] * 2] * 2] * 2  # (0+1+2 + 10+11+12) / 2

    def test_it_may_be_set_between_two_steps(self):
        named = parameters()
        optimizer = wrap(named, dgc.dense())
        optimizer.set_backward_passes_per_step(2)
        assert optimizer.batches_per_step == 2
        for number in range(2):
            loss(named, 0, number).backward()
        optimizer.step()
        assert optimizer.progress.steps == 1
        with pytest.raises(ValueError, match='batches_per_step must be at least 1, got 0'):
            optimizer.set_backward_passes_per_step(0)

    def test_within_a_step_it_may_not(self):
        named = parameters()
        optimizer = wrap(named, dgc.dense(), backward_passes_per_step=2)
        loss(named, 0, 0).backward()
        with pytest.raises(RuntimeError, match='within a step'):
            optimizer.set_backward_passes_per_step(1)


class TestSynchronize:
    @pytest.mark.parametrize('skips', [True, False])
    def test_clipping_after_it_and_a_step_that_sends_nothing_again(self, skips):
        def worker(engine):
            named = parameters()
            optimizer = wrap(named, dgc.dense(), engine, lr=1.0)
            before = values(named)
            loss(named, engine.rank, 0).backward()
            optimizer.synchronize()
            optimizer.synchronize()
            sent = optimizer.progress.sent
            nn.utils.clip_grad_norm_([p for _, p in named], 0.5)
            with warnings.catch_warnings():
                warnings.simplefilter('error')
                if skips:
                    with optimizer.skip_synchronize():
                        optimizer.step()
                else:
                    optimizer.step()
            moved = [a - b for a, b in zip(values(named), before, strict=True)]
            norm = torch.cat([each.reshape(-1) for each in moved]).norm()
            return float(norm), optimizer.progress.sent - sent, values(named)

        (norm, again, ours), (_, _, other) = dgc.simulate(2, worker)
        assert norm == pytest.approx(0.5, rel=1e-4)
        assert again == 0
        assert all(map(torch.equal, ours, other))

    def test_a_step_that_skips_it_without_it_is_refused_and_a_later_one_is_not(self):
        named = parameters()
        optimizer = wrap(named, dgc.dense())
        loss(named, 0, 0).backward()
        with (
            pytest.raises(RuntimeError, match=r'call synchronize\(\) before it'),
            optimizer.skip_synchronize(),
        ):
            optimizer.step()
        optimizer.step()
        assert optimizer.steps == 1


def embedding(make, composition, engine=None, rank=0, steps=3, **settings):
    """Train an embedding whose samples differ by rank and step."""
    torch.manual_seed(0)
    layer = nn.Embedding(12, 3, sparse=True)
    inner = make(list(layer.parameters()))
    if composition is None:
        optimizer, ranks = inner, (0, 1)  # alone, on the samples of both
    else:
        optimizer = dgc.DistributedOptimizer(inner, None, composition, engine, **settings)
        ranks = (rank,)
    for step in range(steps):
        optimizer.zero_grad()
        for each in ranks:
            draw = torch.Generator().manual_seed(10 * step + each)
            inputs = torch.randint(6, (4,), generator=draw) + 6 * each
            (layer(inputs).square().sum() / len(ranks)).backward()
        optimizer.step()
    return layer.weight.grad, layer.weight.detach().clone()


class TestSparseGradients:
    """test_sparse_embeddings."""

    @pytest.mark.parametrize(
        'make',
        [
            lambda p: torch.optim.SGD(p, lr=0.1),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            lambda p: torch.optim.SparseAdam(p, lr=0.1),
        ],
        ids=['SGD', 'momentum', 'SparseAdam'],
    )
    @pytest.mark.parametrize('make_composition', [dgc.dense, lambda: exact(1.0, memory=Residual())])
    def test_their_mean_is_sparse_and_trains_as_one_process_does(self, make, make_composition):
        def worker(engine):
            return embedding(make, make_composition(), engine, engine.rank, sparse_as_dense=True)

        _, alone = embedding(make, None)
        for gradient, ours in dgc.simulate(2, worker):
            assert gradient.is_sparse
            torch.testing.assert_close(ours, alone, rtol=1e-5, atol=1e-6)

    def test_compressed_nothing_is_lost(self):
        def worker(engine):
            torch.manual_seed(0)
            layer = nn.Embedding(40, 5, sparse=True)
            inner = torch.optim.SGD(layer.parameters(), lr=1.0)
            rules = dgc.LayerRules(min_dims=0)
            composition = exact(0.1, memory=Residual(), rules=rules, always_sparse=True)
            optimizer = dgc.DistributedOptimizer(inner, None, composition, engine)
            before, total = layer.weight.detach().clone(), torch.zeros(40, 5)
            for step in range(4):
                draw = torch.Generator().manual_seed(10 * step + engine.rank)
                inputs = torch.randint(40, (6,), generator=draw)
                factors = torch.randn(6, 5, generator=draw)
                total.index_add_(0, inputs, factors)
                (layer(inputs) * factors).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            (state,) = optimizer.reducer.state_dict()['memory'].values()
            return before - layer.weight.detach(), state['residual'], total

        ranks = dgc.simulate(2, worker)
        mean = sum(total for _, _, total in ranks) / 2
        left = sum(residual.view(40, 5) for _, residual, _ in ranks) / 2
        assert left.abs().max() > 0.1
        torch.testing.assert_close(ranks[0][0] + left, mean, rtol=1e-5, atol=1e-6)


class TestChangesOfRequiresGrad:
    def test_two_networks_that_are_frozen_in_turn(self):
        """test_dynamic_requires_grad, whose loss grows without bound; here it is bounded."""

        def train_in_turn(engine, ranks):
            torch.manual_seed(0)
            networks = [nn.Linear(4, 6), nn.Linear(6, 1)]
            optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in networks]
            if engine is not None:
                optimizers = [
                    dgc.DistributedOptimizer(each, None, dgc.dense(), engine) for each in optimizers
                ]
            for step in range(6):
                for index, network in enumerate(networks):
                    network.requires_grad_(index == step % 2)
                    optimizers[index].zero_grad()
                for rank in ranks:
                    draw = torch.Generator().manual_seed(10 * step + rank)
                    inputs = torch.randn(5, 4, generator=draw)
                    output = networks[1](networks[0](inputs))
                    (output.tanh().mean() / len(ranks)).backward()
                optimizers[step % 2].step()
            return [p.detach().clone() for each in networks for p in each.parameters()]

        alone = train_in_turn(None, (0, 1))
        for ours in dgc.simulate(2, lambda engine: train_in_turn(engine, (engine.rank,))):
            torch.testing.assert_close(ours, alone, rtol=1e-5, atol=1e-6)


def every_optimizer():
    """Torch's optimizers that take vectors and need no closure, with settings that give state."""
    kinds = {
        kind
        for kind in torch.optim.Optimizer.__subclasses__()
        if kind.__module__.startswith('torch.optim')
    }
    others = {torch.optim.LBFGS, torch.optim.Muon, torch.optim.SparseAdam}
    return sorted((kinds | {torch.optim.AdamW}) - others, key=lambda kind: kind.__name__)


@pytest.mark.parametrize('kind', every_optimizer(), ids=lambda kind: kind.__name__)
class TestEveryOptimizer:
    def make(self, kind, named, engine):
        settings = {'momentum': 0.9} if kind is torch.optim.SGD else {}
        inner = kind([p for _, p in named], lr=0.05, **settings)
        return dgc.DistributedOptimizer(inner, named, dgc.dense(), engine)

    def test_ranks_agree_where_each_takes_another_branch(self, kind):
        """test_force_allreduce."""

        def worker(engine):
            named = parameters()
            optimizer = self.make(kind, named, engine)
            for _ in range(2):
                optimizer.zero_grad()
                name, parameter = named[engine.rank]
                set_gradients(named, {name: torch.ones_like(parameter)})
                optimizer.step()
            return values(named)

        ours, other = dgc.simulate(2, worker)
        assert all(map(torch.equal, ours, other))

    def test_what_rank_0_alone_has_loaded_is_broadcast(self, kind):
        """test_broadcast_state."""

        def worker(engine):
            named = parameters()
            optimizer = self.make(kind, named, engine)
            train(optimizer, named, 3, engine.rank)
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer.detach()
            again = [(name, Parameter(p.detach().clone())) for name, p in named]
            resumed = self.make(kind, again, engine)
            if engine.rank == 0:
                resumed.load_state_dict(saved)
            with warnings.catch_warnings():  # of residuals, which this composition has none of
                warnings.simplefilter('ignore')
                resumed.broadcast_state(root=0)
            train(resumed, again, [3, 4], engine.rank)
            return resumed.steps, values(again), resumed.optimizer.state_dict()

        def straight(engine):
            named = parameters()
            optimizer = self.make(kind, named, engine)
            train(optimizer, named, 5, engine.rank)
            return 5, values(named), optimizer.optimizer.state_dict()

        torch.testing.assert_close(dgc.simulate(2, worker), dgc.simulate(2, straight))


class TestBroadcastState:
    def test_settings_that_a_rank_has_changed_are_those_of_the_root(self):
        """test_broadcast_state_options, in which ranks differ from the start: that is refused."""

        def worker(engine):
            named = parameters()
            optimizer = wrap(named, dgc.dense(), engine, momentum=0.9, weight_decay=0.1)
            train(optimizer, named, 1, engine.rank)
            if engine.rank == 1:
                optimizer.param_groups[0].update(lr=0.5, momentum=0.8, weight_decay=0.2)
            optimizer.broadcast_state(root=1)
            train(optimizer, named, [1], engine.rank)
            group = optimizer.param_groups[0]
            return group['lr'], group['momentum'], group['weight_decay'], values(named)

        ours, other = dgc.simulate(2, worker)
        assert ours[:3] == other[:3] == (0.5, 0.8, 0.2)
        assert all(map(torch.equal, ours[3], other[3]))

    def test_ranks_that_differ_from_the_start_are_refused(self):
        def worker(engine):
            wrap(parameters(), dgc.dense(), engine, lr=0.1 * (1 + engine.rank))

        with pytest.raises(dgc.HandshakeError, match='rank 1 and rank 0 differ in the optimizer'):
            dgc.simulate(2, worker)

    def test_ranks_at_the_same_step_keep_their_residuals(self):
        def worker(engine):
            named = parameters()
            optimizer = wrap(named, exact(memory=Residual()), engine)
            train(optimizer, named, 2, engine.rank)
            before = copy.deepcopy(optimizer.reducer.state_dict()['memory'])
            optimizer.broadcast_state()
            after = optimizer.reducer.state_dict()['memory']
            return all(torch.equal(after[n]['residual'], before[n]['residual']) for n in before)

        assert dgc.simulate(2, worker) == [True, True]

    def test_a_rank_at_another_step_says_that_its_memory_starts_empty(self):
        def worker(engine):
            named = parameters()
            optimizer = wrap(named, exact(memory=Residual()), engine)
            train(optimizer, named, 2, engine.rank)
            if engine.rank == 1:
                optimizer.steps = 0  # as if it had not loaded what rank 0 has
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter('always')
                optimizer.broadcast_state()
            memory = optimizer.reducer.state_dict()['memory'].values()
            kept = max(float(each['residual'].abs().max()) for each in memory)
            return optimizer.steps, kept > 0, [str(each.message) for each in caught]

        (ours, ours_kept, none), (other, other_kept, said) = dgc.simulate(2, worker)
        assert (ours, ours_kept, other, other_kept) == (2, True, 2, False)
        assert not none
        assert any('the memory of rank 1 starts empty' in each for each in said)

    def test_a_step_that_creates_state_is_refused_and_says_what_to_call(self):
        named = parameters()
        optimizer = wrap(named, dgc.dense(), momentum=0.9)
        for _, parameter in named:
            parameter.grad = torch.zeros_like(parameter)
        with pytest.raises(RuntimeError, match=r'call optimizer.broadcast_state\(\) in its place'):
            optimizer.step()


class TestOfWhomTheStepIs:
    """The wrapped optimizer, stepped by itself, would apply one rank's gradients in silence."""

    def local(self, named):
        inner = sgd(named)
        outer = torch.optim.SGD([p for _, p in named], lr=0.7)
        return inner, dgc.LocalSteps(inner, outer, named, engine=LocalEngine(), every=2)

    def test_a_wrapper_that_was_not_kept_is_named(self):
        named = parameters()
        inner = sgd(named)
        dgc.DistributedOptimizer(inner, named, dgc.dense(), LocalEngine())
        loss(named, 0, 0).backward()
        message = r'SGD.step\(\) .* the DistributedOptimizer around it was dropped: keep what dgc.D'
        with pytest.raises(RuntimeError, match=message):
            inner.step()

    def test_a_wrapper_that_was_kept_is_named(self):
        named = parameters()
        inner = sgd(named)
        optimizer = dgc.DistributedOptimizer(inner, named, dgc.dense(), LocalEngine())
        loss(named, 0, 0).backward()
        with pytest.raises(RuntimeError, match=r'call step\(\) of the DistributedOptimizer around'):
            inner.step()
        optimizer.step()
        assert optimizer.steps == 1

    def test_local_steps_too(self):
        named = parameters()
        inner, optimizer = self.local(named)
        with pytest.raises(RuntimeError, match=r'call step\(\) of the LocalSteps around it'):
            inner.step()
        train(optimizer, named, 2)
        del optimizer
        gc.collect()
        with pytest.raises(RuntimeError, match='the LocalSteps around it was dropped'):
            inner.step()

    def test_the_outer_optimizer_too(self):
        named = parameters()
        _, optimizer = self.local(named)
        loss(named, 0, 0).backward()
        with pytest.raises(RuntimeError, match=r'call step\(\) of the LocalSteps around it'):
            optimizer.outer.step()
        with pytest.raises(ValueError, match='inner and outer are one optimizer'):
            dgc.LocalSteps(one := sgd(named), one, named, engine=LocalEngine())

    def test_detached_it_steps_by_itself(self):
        named = parameters()
        inner = sgd(named)
        dgc.DistributedOptimizer(inner, named, dgc.dense(), LocalEngine()).detach()
        train(inner, named, 2)

    def test_a_dropped_wrapper_leaves_room_for_another(self):
        named, plain = parameters(), parameters()
        inner = sgd(named)
        for _ in range(2):
            optimizer = None
            optimizer = dgc.DistributedOptimizer(inner, named, dgc.dense(), LocalEngine())
            train(optimizer, named, 2)
        train(sgd(plain), plain, [0, 1, 0, 1])
        torch.testing.assert_close(values(named), values(plain), rtol=1e-5, atol=1e-6)


class TestOneWrapperPerParameter:
    def test_a_second_one_is_refused_by_name_until_the_first_is_detached(self):
        named = parameters()
        first = wrap(named, dgc.dense())
        message = 'narrow.weight is a parameter of another DistributedOptimizer'
        with pytest.raises(ValueError, match=message):
            wrap(named[1:], dgc.dense())
        first.detach()
        train(wrap(named[1:], dgc.dense()), named[1:], 1)

    def test_what_was_detached_takes_nothing_from_the_next(self):
        named = parameters()
        first = wrap(named, dgc.dense())
        first.detach()
        second = wrap(named, dgc.dense())
        first.detach()
        with pytest.raises(ValueError, match='a parameter of another DistributedOptimizer'):
            wrap(named, dgc.dense())
        train(second, named, 1)

    def test_local_steps_and_an_optimizer_of_the_same_parameters_are_refused(self):
        named = parameters()
        kept = TestOfWhomTheStepIs().local(named)
        with pytest.raises(ValueError, match=r'wide\.weight is a parameter of another LocalSteps'):
            wrap(named, dgc.dense())
        assert kept

    def test_two_halves_of_a_model_are_two_optimizers(self):
        named = parameters()
        for half in (named[:2], named[2:]):
            inner = sgd(half)
            assert dgc.DistributedOptimizer(inner, named, dgc.dense(), LocalEngine())


def test_gradients_of_no_sync_alone_are_a_step_also_at_a_rate_of_0():
    """As a warm-up of the rate begins; the step is not one that only makes state."""
    named = parameters()
    optimizer = wrap(named, dgc.dense(), lr=0.0)
    with optimizer.no_sync():
        loss(named, 0, 0).backward()
    optimizer.step()
    assert optimizer.steps == 1


def test_sparse_gradients_of_no_sync_alone_are_a_step_too():
    model = torch.nn.Embedding(5, 2, sparse=True)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = dgc.DistributedOptimizer(inner, model.named_parameters(), dgc.dense())
    before = model.weight.detach().clone()
    with optimizer.no_sync():
        model(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    assert (model.weight - before).sum().item() == pytest.approx(-0.4)


def test_a_learning_rate_scheduler_and_isinstance_take_it_for_an_optimizer():
    named = parameters()
    optimizer = wrap(named, dgc.dense())
    assert isinstance(optimizer, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(optimizer, named, 1)
    scheduler.step()
    assert optimizer.optimizer.param_groups[0]['lr'] == 0.05


@pytest.mark.parametrize('new', [1, 2, 3])
def test_local_steps_gather_all_residuals_for_another_world_size(new, old=2):
    def optimizer_of(engine, named):
        outer = sgd(named, lr=1.0)
        composition = exact(0.1, memory=Residual())
        return dgc.LocalSteps(sgd(named), outer, named, composition, engine, every=2)

    def first(engine):
        named = parameters()
        optimizer = optimizer_of(engine, named)
        train(optimizer, named, 4, engine.rank)
        return optimizer.gather_state_dict(), [(n, p.detach().clone()) for n, p in named]

    def second(engine):
        named = parameters()
        with torch.no_grad():
            for (_, parameter), (_, value) in zip(named, model, strict=True):
                parameter.copy_(value)
        optimizer = optimizer_of(engine, named)
        optimizer.load_state_dict(state)
        return optimizer.reducer.state_dict()['memory']

    ranks = dgc.simulate(old, first)
    state, model = ranks[0]
    assert set(state['ranks']) == {f'rank {rank} of {old}' for rank in range(old)}
    before = [each['memory'] for each in state['ranks'].values()]
    after = dgc.simulate(new, second)
    for name in before[0]:
        if 'residual' in before[0][name]:
            mean = sum(each[name]['residual'] for each in before) / old
            now = sum(each[name]['residual'] for each in after) / new
            torch.testing.assert_close(now, mean, rtol=1e-5, atol=1e-6)


def test_from_a_whole_within_a_round_the_ranks_average_in_the_same_calls():
    def optimizer_of(engine, named):
        inner, outer = sgd(named), sgd(named, lr=1.0)
        return dgc.LocalSteps(inner, outer, named, engine=engine, every=4)

    def first(engine):
        named = parameters()
        optimizer = optimizer_of(engine, named)
        train(optimizer, named, 5, engine.rank)
        return values(named), optimizer.gather_state_dict()

    model, state = dgc.simulate(2, first)[0]

    def second(engine):
        named = [(name, Parameter(p)) for (name, _), p in zip(parameters(), model, strict=True)]
        named = copy.deepcopy(named)
        optimizer = optimizer_of(engine, named)
        optimizer.load_state_dict(copy.deepcopy(state))
        train(optimizer, named, range(5, 8), engine.rank)
        return values(named), optimizer.steps

    (ours, steps), (other, other_steps) = dgc.simulate(2, second)
    assert steps == other_steps == 8
    assert all(map(torch.equal, ours, other))


def test_an_engine_may_be_closed_twice():
    engine = LocalEngine()
    engine.close()
    engine.close()
    assert engine.is_closed


@pytest.mark.xdist_group('torchrun 2')
def test_a_torch_engine_may_be_closed_twice(worlds):
    assert worlds('torchrun', 2).run('interface_worker:closed_twice') == [True, True]


@pytest.mark.horovod
@pytest.mark.xdist_group('horovodrun 3')
class TestWithHorovod:
    def test_its_broadcast_of_parameters_and_of_state(self, worlds):
        (ours, said), *others = worlds('horovodrun', 3).run('horovod_worker:broadcasts')
        for other, _ in others:
            assert all(map(torch.equal, ours, other))
        assert torch.equal(ours[0], torch.ones(3, 4))
        assert 'call optimizer.broadcast_state() in its place' in said

    def test_once_all_ranks_have_state_its_broadcast_works(self, worlds):
        found = worlds('horovodrun', 3).run('horovod_worker:broadcast_after_a_step')
        assert found == [(0.5, 30.0)] * 3

    def test_its_own_values_of_its_settings_are_accepted(self, worlds):
        assert worlds('horovodrun', 3).run('horovod_worker:settings_of_horovod') == [1] * 3
