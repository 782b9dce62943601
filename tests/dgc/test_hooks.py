"""The DDP hook: DDP's own averages where uncompressed, else the steps of our optimizer."""

from __future__ import annotations

import pytest
import torch
from process_helpers import start


@pytest.fixture(scope='module')
def ranks(tmp_path_factory) -> list[dict]:
    """The results of two ranks."""
    folder = tmp_path_factory.mktemp('ddp')
    start('torchrun', 2, 'ddp_worker.py', str(folder))
    return [torch.load(folder / f'{rank}.pth', weights_only=True) for rank in range(2)]


@pytest.mark.parametrize('way', ['hook', 'hook, uncompressed', 'empty'])
def test_ranks_agree_bit_for_bit(ranks, way):
    assert all(map(torch.equal, ranks[0][way], ranks[1][way]))


def test_uncompressed_it_gives_what_ddp_gives_without_a_hook(ranks):
    for ours, theirs in zip(ranks[0]['hook, uncompressed'], ranks[0]['ddp'], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_residuals_outlive_the_rebuilt_buckets(ranks):
    assert all(map(torch.equal, ranks[0]['hook'], ranks[0]['optimizer']))


def test_compressed_differs_from_uncompressed(ranks):
    assert not all(map(torch.equal, ranks[0]['hook'], ranks[0]['ddp']))


def test_state_round_trips(ranks):
    assert all(map(torch.equal, ranks[0]['hook resumed'], ranks[0]['hook']))


def test_the_memory_goes_by_the_groups_that_the_optimizer_has_now(ranks):
    assert [rank['momentum'] for rank in ranks] == [0.5, 0.5]


def test_a_parameter_that_the_optimizer_does_not_update_is_refused_by_name(ranks):
    assert ranks[0]['refusal'].startswith('the model trains bias, which the optimizer does not')
