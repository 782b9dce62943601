"""What PyTorch tests of its own DDP hooks, written anew for ours: docs/interfaces.md.

Cases that test_hooks has are not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hook_cases_worker import KINDS, PASSES, UNEVEN

pytestmark = pytest.mark.xdist_group('torchrun 2')


@pytest.fixture(scope='module')
def ranks(worlds) -> Callable[[str], list[Any]]:
    """The results of a case of hook_cases_worker, on each of two ranks; each case runs once."""
    return cache(lambda case: worlds('torchrun', 2).run('hook_cases_worker:run', case))


@pytest.fixture(scope='module')
def uneven(worlds) -> list[dict[str, Any]]:
    """The results of all cases of uneven inputs, by rank."""
    return worlds('torchrun', 2).run('hook_cases_worker:uneven_cases')


@pytest.mark.parametrize('way', ['', ', density 1', ', PowerSGD', ', fp16', ', int8'])
def test_in_every_step_the_gradient_is_the_mean_of_the_ranks(ranks, way):
    for found in ranks(f'mean of ranks{way}'):
        assert found == pytest.approx([0.5] * 20, rel=1e-5)


def test_ddp_logs_the_name_of_the_hook(ranks):
    assert ranks('logged name') == [(None, 'compression_hook')] * 2


def test_a_second_hook_is_refused_by_ddp(ranks):
    assert all('can only be called once' in message for message in ranks('registered twice'))


def test_the_future_of_the_hook_brings_the_mean(ranks):
    assert all(torch.equal(gradient, torch.full((2, 2), 0.25)) for gradient in ranks('future'))


@pytest.mark.parametrize('way', ['', ', views'])
def test_a_sparse_gradient_is_that_of_one_process_on_all_samples_and_stays_sparse(ranks, way):
    for ours, alone in ranks(f'embedding{way}'):
        assert ours.is_sparse
        assert torch.equal(ours.indices(), alone.indices())
        torch.testing.assert_close(ours.values(), alone.values())


@pytest.mark.parametrize('way', ['', ', views', ', static graph'])
def test_what_no_rank_used_has_no_gradient_and_what_one_rank_used_has_one_on_both(ranks, way):
    assert ranks(f'unused{way}') == [[False, False, True]] * 2


def test_what_one_rank_used_beside_a_rank_that_used_everything_has_a_gradient_on_both(ranks):
    assert ranks('unused on one rank') == [[False, False, False]] * 2


@pytest.mark.parametrize(('way', 'count'), [('', 3), (', unused', 2)])
def test_forward_passes_without_a_backward_pass_change_nothing(ranks, way, count):
    for gradients in ranks(f'ignored outputs{way}'):
        assert len(gradients) == count
        assert all(torch.equal(gradient, torch.full((2, 2), 0.25)) for gradient in gradients)


def test_after_an_error_in_a_backward_pass_the_model_goes_on_in_a_new_ddp(ranks):
    for message, gradient in ranks('after an error'):
        assert 'simulated' in message
        assert torch.equal(gradient, torch.full((10, 10), 0.5))


@pytest.mark.parametrize('passes', PASSES)
class TestUnevenInputs:
    """DDP's ``join()``: a rank without inputs takes part with zeros."""

    @pytest.mark.parametrize('kind', KINDS)
    def test_uncompressed_it_gives_what_ddp_gives_without_a_hook(self, uneven, passes, kind):
        for rank in uneven:
            ours, theirs = rank[f'hook {passes} {kind}'], rank[f'ddp {passes} {kind}']
            torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
            assert ours[1] == theirs[1]

    @pytest.mark.parametrize('way', ['sparse', 'PowerSGD'])
    def test_compressed_the_ranks_end_alike(self, uneven, passes, way):
        for kind in UNEVEN[way][1]:
            ours, other = (rank[f'{way} {passes} {kind}'] for rank in uneven)
            assert all(map(torch.equal, ours[0], other[0]))
            assert [ours[1], other[1]] == list(passes)


@pytest.mark.parametrize('way', ['ddp', 'hook', 'sparse'])
def test_join_may_end_all_ranks_with_the_first(uneven, way):
    (ours, first), (other, second) = (rank[f'{way} throws'] for rank in uneven)
    assert first == second == 3
    assert all(map(torch.equal, ours, other))
