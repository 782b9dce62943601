"""The DDP hook: DDP's own averages at ratio 1.0, and our optimizer's steps at any other."""

from __future__ import annotations

import pytest
import torch
from process_helpers import start


@pytest.fixture(scope='module')
def ranks(tmp_path_factory) -> list[dict]:
    """What each of two ranks came to."""
    folder = tmp_path_factory.mktemp('ddp')
    start('torchrun', 2, 'ddp_worker.py', str(folder))
    return [torch.load(folder / f'{rank}.pth', weights_only=True) for rank in range(2)]


@pytest.mark.parametrize('way', ['hook', 'hook at ratio 1', 'empty'])
def test_workers_agree_bit_for_bit(ranks, way):
    assert all(map(torch.equal, ranks[0][way], ranks[1][way]))


def test_ratio_one_gives_what_ddp_gives_without_a_hook(ranks):
    for ours, theirs in zip(ranks[0]['hook at ratio 1'], ranks[0]['ddp'], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_what_is_kept_outlives_the_rebuilt_buckets(ranks):
    assert all(map(torch.equal, ranks[0]['hook'], ranks[0]['optimizer']))


def test_sparse_differs_from_dense(ranks):
    assert not all(map(torch.equal, ranks[0]['hook'], ranks[0]['ddp']))


def test_state_round_trips(ranks):
    assert all(map(torch.equal, ranks[0]['hook resumed'], ranks[0]['hook']))


def test_the_memory_goes_by_the_groups_that_the_optimizer_has_now(ranks):
    assert [rank['momentum'] for rank in ranks] == [0.5, 0.5]


def test_a_parameter_that_nobody_updates_is_refused_by_name(ranks):
    assert ranks[0]['refusal'].startswith('the model trains bias, which the optimizer does not')
