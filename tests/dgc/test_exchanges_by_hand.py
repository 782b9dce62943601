"""Examples worked out by hand, for the exchanges and for their plain twins."""

import exchange_reference as reference
import pytest
import torch
from exchange_helpers import Case, FirstLargest, run_all
from exchange_reference import Size

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
)


def case(k, *inputs):
    return Case('', k, [torch.tensor(flat) for flat in inputs])


def sum_and_residuals(results):
    return [results[0].total.tolist(), *[one.residual.tolist() for one in results]]


def assert_both_give(make, plain, inputs, expected):
    """expected: the sum, and the residual of each rank."""
    [results] = run_all(make, [inputs])
    assert sum_and_residuals(results) == expected
    assert [plain.total.tolist(), *[residual.tolist() for residual in plain.residuals]] == expected


FOUR = case(1, [5.0, 0, 0], [0, 4.0, 0], [0, 6.0, 0], [0, 0, 1.0])


def test_gtopk_keeps_a_cut_where_the_index_is_in_the_result():
    """Rank 0 cuts rank 1's 4, and 2 cuts 3's 1; then 6 beats 5. Index 1 is in the result, so
    that 4 stays where it was cut; the 5 and the 1 return to those who sent them."""
    expected = [[0, 6, 0], [5, 4, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert_both_give(GTopK, reference.gtopk(FOUR.inputs, 1), FOUR, expected)
    assert_both_give(GTopKDoubling, reference.gtopk_doubling(FOUR.inputs, 1), FOUR, expected)


def test_three_ranks_of_gtopk_fold_the_surplus_one_in_a_different_round():
    """As a tree, (w0 + w1) + w2; by doubling, (w0 + w2) + w1, so that index 0 is cut before the
    rest of it comes."""
    inputs = case(1, [2.0, 0], [2.0, 0], [0, -3.0])
    tree = [[4, 0], [0, 0], [0, 0], [0, -3]]
    assert_both_give(GTopK, reference.gtopk(inputs.inputs, 1), inputs, tree)
    doubling = [[0, -3], [2, 0], [2, 0], [0, 0]]
    assert_both_give(GTopKDoubling, reference.gtopk_doubling(inputs.inputs, 1), inputs, doubling)


TWO = case(2, [3.0, 1, 2, 5], [1.0, 4, -7, 1])
SUM = [0, 5, -7, 0]
RESIDUALS = {
    # Rank 0 sends 5 of the second block and rank 1 sends 4 of the first. There, 3 and 1 + 4
    # meet, and here -7 and 5 + 1; both cut one.
    'global': (GlobalResiduals, [SUM, [3, 0, 2, 5], [1, 0, 0, 1]]),
    'partial': (PartialResiduals, [SUM, [3, 0, 0, 5], [1, 0, 0, 1]]),  # loses the 2, index 2
    'local': (LocalResiduals, [SUM, [3, 0, 2, 0], [1, 0, 0, 1]]),  # loses the 5 that was sent
}


@pytest.mark.parametrize('kind', RESIDUALS)
def test_spardl_of_two_ranks(kind):
    residuals, expected = RESIDUALS[kind]
    plain = reference.spardl(TWO.inputs, 2, residuals=kind)
    make = lambda: SparDL(compressor=FirstLargest(), residuals=residuals())  # noqa: E731
    assert_both_give(make, plain, TWO, expected)


def test_spardl_of_four_teams_of_one_divides_a_cut_that_two_ranks_make():
    """Teams 0 and 1 both cut the 4, whose index the other pair carries to the end: half each."""
    expected = [[0, 6, 0], [5, 2, 0], [0, 2, 0], [0, 0, 0], [0, 0, 1]]
    make = lambda: SparDL(4, compressor=FirstLargest())  # noqa: E731
    assert_both_give(make, reference.spardl(FOUR.inputs, 1, teams=4), FOUR, expected)


def test_spardl_by_bruck_sums_all_four_at_once():
    """So that the 4 meets the 6, and the 3, which is not sent, does not meet the 5."""
    inputs = case(1, [5.0, 0, 0], [3.0, 4, 0], [0, 6.0, 0], [0, 0, 1.0])
    expected = [[0, 10, 0], [5, 0, 0], [3, 0, 0], [0, 0, 0], [0, 0, 1]]
    make = lambda: SparDL(4, Bruck(), FirstLargest())  # noqa: E731
    assert_both_give(make, reference.spardl(inputs.inputs, 1, 4, [Size(1)]), inputs, expected)


def test_oktopk_of_two_ranks():
    """Rank 0 would have the second region begin at index 3, rank 1 at 1: it begins at 2. Each
    sends one element at most, so that rank 1 cuts its 1, of an index that is in the result."""
    inputs = case(2, [5.0, 0, 0, 2, 0], [1.0, -6, 0, 0, 0])
    assert reference.region_bounds(inputs.inputs) == [2]
    plain, threshold = reference.oktopk(inputs.inputs, 2, [2])
    assert threshold == 5
    assert_both_give(OkTopK, plain, inputs, [[5, -6, 0, 0, 0], [0, 0, 0, 2, 0], [1, 0, 0, 0, 0]])


def test_chunks_are_chosen_by_the_sum_of_all_ranks_norms():
    """The norms are 3, 4 and 2; the last chunk is half a one."""
    inputs = case(2, [1.0, 0, -2, 1, 0], [-1.0, 1, 0, 1, 2])
    plain = reference.chunk_all_reduce(inputs.inputs, 2, chunk=2)
    expected = [[0, 0, -2, 2, 0], [1, 0, 0, 0, 0], [-1, 1, 0, 0, 2]]
    assert_both_give(lambda: ChunkAllReduce(2), plain, inputs, expected)
