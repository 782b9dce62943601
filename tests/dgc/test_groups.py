"""Which ranks an engine has, and several optimizers on one engine.

Rows of the second list of failures: a spawned program trains alone; two optimizers, one engine, a
branch by rank.
"""

from __future__ import annotations

import importlib.util
import inspect

import pytest
import torch
import torch.distributed as dist
from dgc_helpers import parameters
from groups_worker import gan, in_turn, one_for_both, top, two_optimizers
from real_worker import collectives

import dgc
from dgc.engines import LocalEngine
from dgc.engines.base import MOST
from dgc.engines.group import Group
from dgc.reducer import Reducer

SORTS = 'sort_ranks' in inspect.signature(dist.new_group).parameters
HOROVOD = importlib.util.find_spec('horovod') is not None


def world_of(launcher, size):
    marks = [pytest.mark.xdist_group(f'{launcher} {size}')]
    marks += [pytest.mark.horovod] if launcher == 'horovodrun' else []
    return pytest.param(launcher, size, marks=marks, id=f'{launcher} {size}')


WORLDS = [world_of('torchrun', 2), world_of('torchrun', 4), world_of('horovodrun', 3)]
every_world = pytest.mark.parametrize(('launcher', 'size'), WORLDS)


def assert_conserved(ranks: list) -> None:
    """All gradients of all ranks are in the parameters or in a residual, to 1e-6 of the largest."""
    for part in ('actor', 'critic'):
        results = [rank[part] for rank in ranks]
        given = sum(each['gradients'] for each in results)
        kept = sum(each['residual'] for each in results)
        for each in results:
            assert torch.equal(each['moved'], results[0]['moved'])
        error = (given - kept - len(ranks) * results[0]['moved']).abs().max()
        assert error < 1e-6 * given.abs().max()
        assert kept.abs().max() > 0


class TestTwoOptimizersOnOneEngine:
    @every_world
    def test_nothing_is_lost_or_mixed(self, worlds, launcher, size):
        assert_conserved(worlds(launcher, size).run('groups_worker:two_optimizers'))

    @every_world
    def test_with_an_engine_each_too(self, worlds, launcher, size):
        """Under Horovod the second engine's collectives had the names of the first one's."""
        assert_conserved(worlds(launcher, size).run('groups_worker:two_engines'))

    @pytest.mark.parametrize('size', [1, 2, 3, 4])
    def test_simulated(self, size):
        assert_conserved(dgc.simulate(size, two_optimizers))

    @every_world
    def test_a_gan_of_dense_steps_is_what_torch_trains_on_all_samples(self, worlds, launcher, size):
        right = gan(None, size)
        for ours in worlds(launcher, size).run('groups_worker:gan', size):
            torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)

    @pytest.mark.skipif(not hasattr(torch.optim, 'Muon'), reason='Muon is of torch 2.9 and newer')
    def test_muon_for_matrices_and_adamw_for_the_rest(self):
        def train(engine, mine):
            named = parameters({'a.weight': (8, 6), 'a.bias': (8,), 'b.weight': (5, 8)})
            is_matrix = {name: p.dim() == 2 for name, p in named}
            inner = [
                torch.optim.Muon([p for name, p in named if is_matrix[name]], lr=0.1),
                torch.optim.AdamW([p for name, p in named if not is_matrix[name]], lr=0.1),
            ]
            if engine is not None:
                inner = [dgc.DistributedOptimizer(x, named, dgc.dense(), engine) for x in inner]
            for step in range(4):
                for optimizer in inner:
                    optimizer.zero_grad()
                draws = [torch.Generator().manual_seed(10 * step + rank) for rank in mine]
                loss = sum(
                    (p * torch.randn(p.shape, generator=draw)).sum()
                    for draw in draws
                    for _, p in named
                )
                (loss / len(draws)).backward()
                for optimizer in inner:
                    optimizer.step()
            return [p.detach().clone() for _, p in named]

        right = train(None, range(2))
        for ours in dgc.simulate(2, lambda engine: train(engine, [engine.rank])):
            torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-4)  # Muon is in bfloat16

    def test_steps_in_another_order_end_in_an_error_and_not_in_wrong_sums(self):
        def worker(engine):
            optimizers = []
            for name in ('first', 'second'):
                named = parameters({name: (8, 8)})
                inner = torch.optim.SGD([named[0][1]], lr=1.0)
                optimizers.append(dgc.DistributedOptimizer(inner, named, top(), engine))
            sum(p.sum() for each in optimizers for p in each.param_groups[0]['params']).backward()
            for optimizer in optimizers[:: 1 if engine.rank else -1]:
                optimizer.step()

        with pytest.raises(dgc.EngineError, match=r'deadlock: ranks \[0, 1\] wait'):
            dgc.simulate(2, worker)

    @pytest.mark.parametrize(('detach', 'most'), [(True, 1), (False, MOST + 1)])
    def test_optimizers_made_one_after_another_use_few_engines(self, detach, most):
        """Without detach() a dropped optimizer was never freed, nor its model."""
        for engines in dgc.simulate(2, lambda engine: in_turn(engine, detach)):
            assert engines <= most

    def test_ranks_that_have_dropped_different_optimizers_choose_the_same_engine(self):
        """Garbage collection is not alike on all ranks: an engine is free if it is on all."""

        def worker(engine):
            held = []
            for number in range(3):
                named = parameters({f'weight {number}': (8, 8)})
                inner = torch.optim.SGD([named[0][1]], lr=1.0)
                optimizer = dgc.DistributedOptimizer(inner, named, top(), engine)
                if engine.rank == number:
                    held.append(optimizer)
            del optimizer, inner, named
            return len(engine._duplicates)

        assert dgc.simulate(2, worker) == [2, 2]

    @pytest.mark.parametrize(
        ('has_thread', 'is_shared', 'device', 'waits'),
        [
            (True, False, 'cuda', False),
            (True, True, 'cuda', True),  # NCCL's communicators need one order on all ranks
            (True, True, 'cpu', False),
            (False, True, 'cpu', True),  # a simulated rank would wait in its backward pass
            (False, False, 'cpu', False),
            (False, False, 'cuda', True),
        ],
    )
    def test_which_buckets_are_sent_in_step_only(self, has_thread, is_shared, device, waits):
        engine = LocalEngine()
        engine.has_thread, engine.is_shared = has_thread, is_shared
        reducer = Reducer([], dgc.dense(), engine)
        assert reducer._waits_for_step(torch.device(device)) is waits

    def test_an_optimizer_cannot_be_added_while_another_ones_messages_are_under_way(self):
        def worker(engine):
            named = parameters()
            first = dgc.DistributedOptimizer(
                torch.optim.SGD([p for _, p in named], lr=1.0), named, top(), engine
            )
            sum(p.sum() for _, p in named).backward()
            with pytest.raises(RuntimeError, match=r'another optimizer on this engine is between'):
                two_optimizers(engine)
            first.step()
            two_optimizers(engine)
            return True

        assert dgc.simulate(2, worker) == [True, True]

    def test_an_engine_that_cannot_be_duplicated_refuses_the_second(self):
        def worker(engine):
            group, optimizers = Group(engine, [0, 1]), []
            for name, given in zip(('first', 'second'), one_for_both(group), strict=False):
                named = parameters({name: (8, 8)})
                inner = torch.optim.SGD([named[0][1]], lr=1.0)
                optimizers.append(dgc.DistributedOptimizer(inner, named, dgc.dense(), given))

        with pytest.raises(dgc.EngineError, match='group serves one optimizer, and another one'):
            dgc.simulate(2, worker)


@pytest.mark.parametrize(('launcher', 'size'), WORLDS[:2])
def test_without_a_launcher_an_initialised_group_is_used_and_nothing_smaller(
    worlds, launcher, size
):
    """A program of mp.spawn trained each process alone, without a word."""
    for rank, ours in enumerate(worlds(launcher, size).run('groups_worker:spawned')):
        assert ours['engine'] == ('torch', rank, size, rank, size)
        assert ours['sum'] == size
        assert ours['variables'] == []  # later processes would read those of a launcher
        for case in ('local', 'created before'):
            assert ours[case] == (
                f'engine local has 1 rank, and init_process_group was called for {size}, of which '
                f'this process is rank {rank}: call dgc.create() after init_process_group and '
                'without a name, or pass TorchEngine(group=...) for some of these ranks'
            )
        assert 'without init_process_group' in ours['simulated']


class TestEnginesOfSomeRanks:
    @pytest.mark.xdist_group('torchrun 4')
    def test_collectives_and_training_are_those_of_the_group(self, worlds):
        ranks = worlds('torchrun', 4).run('groups_worker:in_halves')
        expected = dgc.simulate(2, collectives)
        for first in range(2):
            half = ranks[first::2]
            assert [place for place, *_ in half] == [(0, 2, 0, 2), (1, 2, 1, 2)]
            for (_, ours, _, total), theirs in zip(half, expected, strict=True):
                assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
                assert total == 2 * first + 2
            assert_conserved([trained for _, _, trained, _ in half])

    @pytest.mark.xdist_group('torchrun 4')
    def test_ranks_may_be_in_different_numbers_of_groups(self, worlds):
        sums = [([1.0], 4), ([1.0, 3.0], 4), ([3.0, 5.0], 4), ([5.0], 4)]
        assert worlds('torchrun', 4).run('groups_worker:in_pairs') == sums

    @pytest.mark.skipif(not SORTS, reason='new_group(sort_ranks=...) is of torch 2.9 and newer')
    @pytest.mark.xdist_group('torchrun 4')
    def test_ranks_are_counted_as_in_the_group(self, worlds):
        ranks = worlds('torchrun', 4).run('groups_worker:backwards')
        assert [rank for rank, _ in ranks] == [3, 2, 1, 0]
        expected = dgc.simulate(4, collectives)
        for rank, ours in ranks:
            assert all(torch.equal(ours[name], expected[rank][name]) for name in ours)

    @pytest.mark.xdist_group('torchrun 2')
    def test_a_rank_outside_is_refused_and_what_is_no_group(self, worlds):
        first, second = worlds('torchrun', 2).run('groups_worker:outside')
        assert 'group' not in first
        assert second['group'] == (
            'TorchEngine(group=...): rank 1 is not a member of that group: make the engine on the '
            'members only'
        )
        assert 'must be a process group, got list: pass what dist.new_group' in first['list']
