"""SparDL's three ways to keep what was cut, and what two of them lose (section III-C)."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from exchange_helpers import FirstLargest, assert_agree, bring_all, cases_of, lost

from dgc.exchanges import (
    Bruck,
    GlobalResiduals,
    LocalResiduals,
    PartialResiduals,
    SparDL,
    reference,
)
from dgc.exchanges.reference import Size

RESIDUALS = {'global': GlobalResiduals, 'partial': PartialResiduals, 'local': LocalResiduals}
KINDS = ('normal', 'ties', 'one element', 'fewer elements than workers', 'all in one block')
WORLDS = [(1, 1), (2, 1), (3, 1), (5, 1), (8, 1), (6, 2), (8, 4), (6, 3), (9, 3)]  # workers, teams


def results(kind, workers, teams):
    """Cases, what the workers have in the end, and what they should."""
    gather = Bruck if teams == 3 else lambda: None
    make = lambda: SparDL(teams, gather(), FirstLargest(), RESIDUALS[kind]())  # noqa: E731
    cases = cases_of(workers, whole=True, kinds=KINDS)
    for case, ended in zip(cases, bring_all(make, cases), strict=True):
        blocks = workers // teams
        sizes = [Size(max(-(-case.k // blocks), 1)) for _ in range(blocks)] if teams == 3 else None
        yield case, ended, partial(reference.spardl, case.inputs, case.k, teams, sizes)


@pytest.mark.parametrize(('workers', 'teams'), WORLDS)
@pytest.mark.parametrize('kind', RESIDUALS)
def test_each_worker_keeps_what_the_slow_twin_says(kind, workers, teams):
    for case, ended, slow in results(kind, workers, teams):
        right = slow(kind)
        assert_agree(case, ended)
        assert torch.equal(ended[0].total, right.total), case.name
        for one, kept in zip(ended, right.kept, strict=True):
            torch.testing.assert_close(one.kept, kept, rtol=1e-6, atol=1e-6, msg=case.name)


@pytest.mark.parametrize(('workers', 'teams'), WORLDS)
def test_only_the_global_ones_lose_nothing(workers, teams):
    gone = {
        kind: [
            lost(case, ended[0].total, [one.kept for one in ended])
            for case, ended, _ in results(kind, workers, teams)
        ]
        for kind in RESIDUALS
    }
    assert all(float(flat.abs().max()) < 1e-5 for flat in gone['global'])
    if workers > 1:
        assert any(flat.any() for flat in gone['partial'])
        assert any(flat.any() for flat in gone['local'])


@pytest.mark.parametrize(('workers', 'teams'), WORLDS)
def test_partial_ones_lose_what_was_cut_of_elements_in_the_result(workers, teams):
    """Just what the global ones keep there."""
    for case, ended, slow in results('partial', workers, teams):
        right = slow('global')
        cut = sum(kept.double() for kept in right.kept).where(right.delivered, 0.0)
        gone = lost(case, ended[0].total, [one.kept for one in ended])
        torch.testing.assert_close(gone, cut, rtol=1e-5, atol=1e-5, msg=case.name)


@pytest.mark.parametrize(('workers', 'teams'), WORLDS)
def test_local_ones_lose_what_others_cut_of_what_was_sent(workers, teams):
    """Nothing where nobody sent; and there, whatever did not arrive."""
    for case, ended, _ in results('local', workers, teams):
        gone = lost(case, ended[0].total, [one.kept for one in ended])
        sent = [flat - one.kept for flat, one in zip(case.inputs, ended, strict=True)]
        came_to_nothing = sum(part.double() for part in sent) - ended[0].total.double()
        torch.testing.assert_close(gone, came_to_nothing, rtol=1e-5, atol=1e-5, msg=case.name)
        nowhere = torch.stack([part == 0 for part in sent]).all(0)
        assert not gone[nowhere].any()
        for flat, one in zip(case.inputs, ended, strict=True):  # an element is sent whole, or not
            assert ((one.kept == 0) | (one.kept == flat)).all()


def test_they_say_whether_they_lose():
    assert [RESIDUALS[kind].loses for kind in RESIDUALS] == [False, True, True]
