"""Each quantization error ends in exactly one memory, however often a sum is encoded."""

import pytest
import torch
from exchange_helpers import (
    EXCHANGES,
    Case,
    assert_agree,
    assert_conserved,
    cases_of,
    run_all,
    worlds,
)

from dgc.codec import Codec

CODECS = {'fp16 int32': Codec('fp16', 'int32'), 'int8 packed': Codec('int8', 'packed')}
KINDS = ('normal', 'ties', 'one element', 'fewer elements than ranks', 'less than k')


@pytest.mark.parametrize(
    ('row', 'world_size', 'codec'),
    [(row, world_size, 'fp16 int32') for row, world_size in worlds((1, 3, 4, 6))]
    + [(row, world_size, 'int8 packed') for row, world_size in worlds((2, 5, 6, 8))],
)
def test_all_agree_and_nothing_is_lost(row, world_size, codec):
    kinds = KINDS[world_size // 2 % 2 :: 2]  # in turns
    cases = cases_of(world_size, corrected=True, kinds=kinds)
    results = run_all(EXCHANGES[row][0], cases, CODECS[codec])
    for case, of_case in zip(cases, results, strict=True):
        assert_agree(case, of_case)
        assert_conserved(case, of_case)


@pytest.mark.parametrize('world_size', [1, 5, 8])
@pytest.mark.parametrize('row', ['gtopk', 'gtopk doubling', 'spardl'])
def test_one_rank_keeps_the_error_of_a_message_that_many_encode(row, world_size):
    """One rank has an element that int8 rounds to zero beside a larger one."""
    mine = torch.zeros(40)
    mine[3], mine[4] = 127.0, 0.4
    case = Case('', 2 * world_size, [*[torch.zeros(40)] * (world_size - 1), mine])
    [results] = run_all(EXCHANGES[row][0], [case], Codec('int8', 'int32'))
    residuals = torch.stack([one.residual for one in results])
    assert results[0].total.nonzero().tolist() == [[3]]
    assert residuals.nonzero()[:, 1].tolist() == [4]
    assert float(residuals.sum()) == pytest.approx(0.4)


@pytest.mark.parametrize(('row', 'world_size'), worlds((1, 2, 3, 12)))
def test_zero_gradients_give_a_zero_sum_and_zero_residuals(row, world_size):
    """torch.topk selects k zeros where there is nothing else: messages of explicit zeros."""
    case = Case('', 5, [torch.zeros(30)] * world_size)
    for codec in (Codec(), CODECS['int8 packed']):
        [results] = run_all(EXCHANGES[row][0], [case], codec)
        for one in results:
            assert not one.total.any()
            assert not one.residual.any()
