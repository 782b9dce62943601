"""The DDP hook: DDP's own averages where uncompressed, else the steps of our optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.xdist_group('torchrun 2')


@pytest.fixture(scope='module')
def ranks(worlds) -> Callable[[str], list[Any]]:
    """The results of a case of ddp_worker, on each of two ranks; each case runs once."""
    return cache(lambda case: worlds('torchrun', 2).run('ddp_worker:run', case))


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


@pytest.mark.parametrize('way', ['hook resumed', 'hook resumed from a whole'])
def test_state_round_trips(ranks, way):
    assert all(map(torch.equal, ranks(way)[0], ranks('hook')[0]))


def test_the_memory_goes_by_the_groups_that_the_optimizer_has_now(ranks):
    assert ranks('momentum') == [0.5, 0.5]


def test_a_parameter_that_the_optimizer_does_not_update_is_refused_by_name(ranks):
    assert ranks('refusal')[0].startswith('the model trains bias, which the optimizer does not')
