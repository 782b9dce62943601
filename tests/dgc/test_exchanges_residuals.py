"""SparDL's three variants of residuals, and the truncation error that two of them lose (section
III-C)."""

from __future__ import annotations

from functools import partial

import exchange_reference as reference
import pytest
import torch
from exchange_helpers import FirstLargest, assert_agree, cases_of, lost, run_all
from exchange_reference import Size

from dgc.exchanges import (
    Bruck,
    GlobalResiduals,
    LocalResiduals,
    PartialResiduals,
    SparDL,
)

RESIDUALS = {'global': GlobalResiduals, 'partial': PartialResiduals, 'local': LocalResiduals}
KINDS = ('normal', 'ties', 'one element', 'fewer elements than ranks', 'all in one block')
# World size and teams.
WORLDS = [(1, 1), (2, 1), (3, 1), (5, 1), (8, 1), (6, 2), (8, 4), (6, 3), (9, 3)]


def runs(kind, world_size, teams):
    """Yield each case, the ranks' results, and a function that computes the plain twin's."""
    gather = Bruck if teams == 3 else lambda: None
    make = lambda: SparDL(teams, gather(), FirstLargest(), RESIDUALS[kind]())  # noqa: E731
    cases = cases_of(world_size, corrected=True, kinds=KINDS)
    for case, results in zip(cases, run_all(make, cases), strict=True):
        blocks = world_size // teams
        sizes = [Size(max(-(-case.k // blocks), 1)) for _ in range(blocks)] if teams == 3 else None
        yield case, results, partial(reference.spardl, case.inputs, case.k, teams, sizes)


@pytest.mark.parametrize(('world_size', 'teams'), WORLDS)
@pytest.mark.parametrize('kind', RESIDUALS)
def test_residuals_equal_the_plain_twins(kind, world_size, teams):
    for case, results, plain in runs(kind, world_size, teams):
        expected = plain(kind)
        assert_agree(case, results)
        assert torch.equal(results[0].total, expected.total), case.name
        for one, residual in zip(results, expected.residuals, strict=True):
            torch.testing.assert_close(one.residual, residual, rtol=1e-6, atol=1e-6, msg=case.name)


@pytest.mark.parametrize(('world_size', 'teams'), WORLDS)
def test_only_global_residuals_lose_nothing(world_size, teams):
    gone = {
        kind: [
            lost(case, results[0].total, [one.residual for one in results])
            for case, results, _ in runs(kind, world_size, teams)
        ]
        for kind in RESIDUALS
    }
    assert all(float(flat.abs().max()) < 1e-5 for flat in gone['global'])
    if world_size > 1:
        assert any(flat.any() for flat in gone['partial'])
        assert any(flat.any() for flat in gone['local'])


@pytest.mark.parametrize(('world_size', 'teams'), WORLDS)
def test_partial_residuals_lose_what_was_cut_at_indices_of_the_result(world_size, teams):
    """Exactly what global residuals keep there."""
    for case, results, plain in runs('partial', world_size, teams):
        expected = plain('global')
        cut = sum(residual.double() for residual in expected.residuals).where(
            expected.delivered, 0.0
        )
        gone = lost(case, results[0].total, [one.residual for one in results])
        torch.testing.assert_close(gone, cut, rtol=1e-5, atol=1e-5, msg=case.name)


@pytest.mark.parametrize(('world_size', 'teams'), WORLDS)
def test_local_residuals_lose_what_other_ranks_cut_of_sent_elements(world_size, teams):
    """Nothing where no rank sent an element; elsewhere all that did not arrive."""
    for case, results, _ in runs('local', world_size, teams):
        gone = lost(case, results[0].total, [one.residual for one in results])
        sent = [flat - one.residual for flat, one in zip(case.inputs, results, strict=True)]
        not_delivered = sum(part.double() for part in sent) - results[0].total.double()
        torch.testing.assert_close(gone, not_delivered, rtol=1e-5, atol=1e-5, msg=case.name)
        unsent = torch.stack([part == 0 for part in sent]).all(0)
        assert not gone[unsent].any()
        for flat, one in zip(case.inputs, results, strict=True):
            # An element is sent entirely or not at all.
            assert ((one.residual == 0) | (one.residual == flat)).all()


def test_the_attribute_loses():
    assert [RESIDUALS[kind].loses for kind in RESIDUALS] == [False, True, True]
