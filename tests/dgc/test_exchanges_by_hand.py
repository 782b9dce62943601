"""Exchanges small enough to be worked out on paper, by the fast ones and by their slow twins."""

import pytest
import torch
from exchange_helpers import Case, FirstLargest, bring_all

from dgc.exchanges import (
    Bruck,
    ChunkAllReduce,
    GlobalResiduals,
    GTopK,
    GTopKDoubling,
    LocalResiduals,
    OkTopK,
    PartialResiduals,
    SparDL,
    reference,
)
from dgc.exchanges.reference import Size


def case(k, *inputs):
    return Case('', k, [torch.tensor(flat) for flat in inputs])


def outcome_of(ended):
    return [ended[0].total.tolist(), *[one.kept.tolist() for one in ended]]


def assert_comes_to(make, slow, brought, right):
    """right: the sum, and what each worker keeps."""
    [ended] = bring_all(make, [brought])
    assert outcome_of(ended) == right
    assert [slow.total.tolist(), *[kept.tolist() for kept in slow.kept]] == right


FOUR = case(1, [5.0, 0, 0], [0, 4.0, 0], [0, 6.0, 0], [0, 0, 1.0])


def test_gtopk_returns_what_was_cut_of_an_index_that_others_carry_to_the_end():
    """Worker 0 cuts worker 1's 4, and 2 cuts 3's 1; then 6 beats 5. Index 1 is in the result, so
    that 4 stays where it was cut; the 5 and the 1 return to those who sent them."""
    right = [[0, 6, 0], [5, 4, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert_comes_to(GTopK, reference.gtopk(FOUR.inputs, 1), FOUR, right)
    assert_comes_to(GTopKDoubling, reference.gtopk_doubling(FOUR.inputs, 1), FOUR, right)


def test_three_workers_of_gtopk_fold_the_surplus_one_in_a_different_round():
    """As a tree, (w0 + w1) + w2; by doubling, (w0 + w2) + w1, so that index 0 is cut before the
    rest of it comes."""
    brought = case(1, [2.0, 0], [2.0, 0], [0, -3.0])
    tree = [[4, 0], [0, 0], [0, 0], [0, -3]]
    assert_comes_to(GTopK, reference.gtopk(brought.inputs, 1), brought, tree)
    doubling = [[0, -3], [2, 0], [2, 0], [0, 0]]
    assert_comes_to(GTopKDoubling, reference.gtopk_doubling(brought.inputs, 1), brought, doubling)


TWO = case(2, [3.0, 1, 2, 5], [1.0, 4, -7, 1])
SUM = [0, 5, -7, 0]
RESIDUALS = {
    # Worker 0 sends 5 of the second block and worker 1 sends 4 of the first. There, 3 and 1 + 4
    # meet, and here -7 and 5 + 1; both cut one.
    'global': (GlobalResiduals, [SUM, [3, 0, 2, 5], [1, 0, 0, 1]]),
    'partial': (PartialResiduals, [SUM, [3, 0, 0, 5], [1, 0, 0, 1]]),  # loses the 2, index 2
    'local': (LocalResiduals, [SUM, [3, 0, 2, 0], [1, 0, 0, 1]]),  # loses the 5 that was sent
}


@pytest.mark.parametrize('kind', RESIDUALS)
def test_spardl_of_two_workers(kind):
    residuals, right = RESIDUALS[kind]
    slow = reference.spardl(TWO.inputs, 2, residuals=kind)
    make = lambda: SparDL(compressor=FirstLargest(), residuals=residuals())  # noqa: E731
    assert_comes_to(make, slow, TWO, right)


def test_spardl_of_four_teams_of_one_shares_out_what_two_have_cut():
    """Teams 0 and 1 both cut the 4, whose index the other pair carries to the end: half each."""
    right = [[0, 6, 0], [5, 2, 0], [0, 2, 0], [0, 0, 0], [0, 0, 1]]
    make = lambda: SparDL(4, compressor=FirstLargest())  # noqa: E731
    assert_comes_to(make, reference.spardl(FOUR.inputs, 1, teams=4), FOUR, right)


def test_spardl_by_bruck_sums_all_four_at_once():
    """So that the 4 meets the 6, and the 3, which is not sent, does not meet the 5."""
    brought = case(1, [5.0, 0, 0], [3.0, 4, 0], [0, 6.0, 0], [0, 0, 1.0])
    right = [[0, 10, 0], [5, 0, 0], [3, 0, 0], [0, 0, 0], [0, 0, 1]]
    make = lambda: SparDL(4, Bruck(), FirstLargest())  # noqa: E731
    assert_comes_to(make, reference.spardl(brought.inputs, 1, 4, [Size(1)]), brought, right)


def test_oktopk_of_two_workers():
    """Worker 0 would have the second region begin at index 3, worker 1 at 1: it begins at 2. Each
    sends one element at most, so that worker 1 cuts its 1, of an index that is in the result."""
    brought = case(2, [5.0, 0, 0, 2, 0], [1.0, -6, 0, 0, 0])
    assert reference.region_bounds(brought.inputs) == [2]
    slow, threshold = reference.oktopk(brought.inputs, 2, [2])
    assert threshold == 5
    assert_comes_to(OkTopK, slow, brought, [[5, -6, 0, 0, 0], [0, 0, 0, 2, 0], [1, 0, 0, 0, 0]])


def test_chunks_are_chosen_by_what_all_workers_have_there():
    """The norms are 3, 4 and 2; the last chunk is half a one."""
    brought = case(2, [1.0, 0, -2, 1, 0], [-1.0, 1, 0, 1, 2])
    slow = reference.chunk_all_reduce(brought.inputs, 2, chunk=2)
    right = [[0, 0, -2, 2, 0], [1, 0, 0, 0, 0], [-1, 1, 0, 0, 2]]
    assert_comes_to(lambda: ChunkAllReduce(2), slow, brought, right)
