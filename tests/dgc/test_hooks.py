"""The DDP hook: DDP's own averages where uncompressed, else the steps of our optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import ddp_worker
import pytest
import torch
import torch.distributed as dist

SORTS = 'sort_ranks' in inspect.signature(dist.new_group).parameters

pytestmark = pytest.mark.xdist_group('torchrun 2')


@pytest.fixture(scope='module')
def ranks(worlds) -> Callable[[str], list[Any]]:
    """The results of a case of ddp_worker, on each of two ranks; each case runs once."""
    return cache(lambda case: worlds('torchrun', 2).run('ddp_worker:run', case))


@pytest.fixture(scope='module')
def conserving(worlds) -> dict[str, float]:
    """The relative errors of all cases of conservation."""
    return worlds('torchrun', 2).run('ddp_worker:conserving')[0]


@pytest.fixture(scope='module')
def equal(worlds) -> dict[str, float]:
    """The differences to plain DDP."""
    return worlds('torchrun', 2).run('ddp_worker:equal')[0]


@pytest.mark.parametrize('way', ['hook', 'hook, uncompressed', 'empty'])
def test_ranks_agree_bit_for_bit(ranks, way):
    assert all(map(torch.equal, ranks(way)[0], ranks(way)[1]))


def test_uncompressed_it_gives_what_ddp_gives_without_a_hook(ranks):
    for ours, theirs in zip(ranks('hook, uncompressed')[0], ranks('ddp')[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_residuals_outlive_the_rebuilt_buckets(ranks):
    assert all(map(torch.equal, ranks('hook')[0], ranks('optimizer')[0]))


def test_compressed_differs_from_uncompressed(ranks):
    assert not all(map(torch.equal, ranks('hook')[0], ranks('ddp')[0]))


@pytest.mark.parametrize('control', ddp_worker.CONTROLS)
@pytest.mark.parametrize('way', ['known', 'unknown', 'hidden', 'pickled'])
def test_densities_are_chosen_as_those_of_our_optimizer(ranks, way, control):
    first, second = ranks(f'{way}, {control}')
    assert first == second == ranks(f'optimizer, {control}')[0]
    assert len(set(map(str, first))) > 2  # several decisions


@pytest.mark.parametrize('passes', [1, 2])
def test_the_memory_format_of_a_parameter_changes_nothing(ranks, passes):
    for ours, plain in zip(
        *map(ranks, [f'channels last, {passes}', f'contiguous, {passes}']), strict=True
    ):
        assert all(map(torch.equal, ours, plain))


@pytest.mark.parametrize('way', ['hook resumed', 'hook resumed from a whole'])
def test_state_round_trips(ranks, way):
    assert all(map(torch.equal, ranks(way)[0], ranks('hook')[0]))


def test_the_memory_goes_by_the_groups_that_the_optimizer_has_now(ranks):
    assert ranks('momentum') == [0.5, 0.5]


@pytest.mark.parametrize('which', ['a known', 'an unknown'])
def test_what_an_optimizer_steps_by_is_not_kept(ranks, which):
    """MuonAndAdamW makes two optimizers in each step, which the hook kept and looked through."""
    assert ranks(f'optimizers of {which} one') == [1, 1]


def test_a_parameter_that_the_optimizer_does_not_update_is_refused_by_name(ranks):
    assert ranks('refusal')[0].startswith('the model trains bias, which the optimizer does not')


@pytest.mark.parametrize(
    ('way', 'other'),
    [('state', 'hook'), ('state pickled', 'hook'), ('nesterov pickled', 'nesterov')],
)
def test_a_registered_state_gives_what_the_hook_gives(ranks, way, other):
    assert all(map(torch.equal, ranks(way)[0], ranks(other)[0]))


def test_a_registered_state_uncompressed_gives_what_ddp_gives(ranks):
    for ours, theirs in zip(ranks('state, uncompressed')[0], ranks('ddp')[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_deep_copy_of_the_model_goes_on_alike(ranks):
    assert all(ranks('deep copy')[0])


@pytest.mark.parametrize(
    ('case', 'message'),
    [
        ('twice', 'MomentumCorrection holds the momentum and SGD would apply it again'),
        ('never', 'DGCSGD leaves momentum to the memory and NoMemory has none'),
        ('late nesterov', 'DGCSGD has nesterov=True, which the memory applies from the first'),
        ('late groups', 'DGCSGD has groups of different momentum ([0.5, 0.9])'),
        ('rate', 'DecoupledMomentum uses the learning rate from the first backward pass on'),
        ('rate, pickled', 'DecoupledMomentum uses the learning rate from the first backward'),
        ('accumulated', 'gradients are accumulated over several backward passes, and Decoupled'),
        ('mixed precision', 'DistributedDataParallel(mixed_precision=…) has a communication hook'),
        (
            'no scaler',
            'a GradScaler that was not given steps AdamW: gradients were compressed with',
        ),
        ('no scaler, known', 'a GradScaler that was not given steps AdamW'),
        ('other scaler', 'a GradScaler that was not given steps AdamW'),
        ('skipping', "nonfinite='skip' needs DistributedOptimizer, or a GradScaler that skips"),
        ('float16', 'scaler does not divide float16 gradients, and weight is float16'),
        ('other group', 'process_group of CompressionState has the ranks [0, 1], and that of Dis'),
        ('other model', 'DistributedDataParallel averages a parameter (4, 6) that this Compress'),
    ],
)
def test_what_does_not_fit_is_refused_by_name(ranks, case, message):
    assert ranks(case)[0].startswith(message)


def test_without_a_scaler_an_overflow_says_where_to_write_it(ranks):
    """In the first steps the documented loop may not come as far as the optimizer's step."""
    for message in ranks('no scaler, overflow'):
        assert 'not finite' in message
        assert message.endswith('GradScaler, write CompressionState(…, scaler=scaler)')


@pytest.mark.parametrize('case', ['bfloat16', 'half'])
def test_the_mean_of_two_byte_gradients_is_rounded_once(ranks, case):
    assert ranks(case) == [[True] * 6] * 2


def test_the_snippet_with_a_scaler(ranks):
    assert ranks('as documented') == [True, True]


def test_a_backward_pass_that_is_discarded_is_warned_of_once(ranks):
    assert [len(messages) for messages in ranks('discarded')[0]] == [1, 1]
    assert ranks('not discarded')[0] == [[], []]


@pytest.mark.parametrize('way', ['alone, state', 'alone, hook', 'other hook'])
def test_the_mean_is_over_the_process_group_of_ddp(ranks, way):
    for ours, theirs in zip(ranks(way), ranks('alone, ddp'), strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert not all(map(torch.equal, ranks(way)[0], ranks(way)[1]))


@pytest.mark.skipif(not SORTS, reason='new_group(sort_ranks=...) is of torch 2.9 and newer')
def test_a_process_group_may_have_the_ranks_in_another_order(ranks):
    for ours, theirs in zip(ranks('backwards, state')[0], ranks('backwards, ddp')[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('case', ddp_worker.CONSERVING)
def test_nothing_is_lost(conserving, case):
    assert conserving[case] < 1e-6


@pytest.mark.parametrize('case', ddp_worker.EQUAL)
def test_at_density_1_it_is_plain_ddp(equal, case):
    assert equal[case] < 1e-5


@pytest.mark.parametrize('way', ['embedding', 'embedding accumulated'])
def test_sparse_gradients_are_averaged_densely(ranks, way):
    for ours, theirs in zip(ranks(way)[0], ranks(f'{way}, ddp')[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
