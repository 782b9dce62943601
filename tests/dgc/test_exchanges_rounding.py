"""What a codec rounds off ends in one memory, however often a sum is written on its way."""

import pytest
import torch
from exchange_helpers import (
    EXCHANGES,
    Case,
    assert_agree,
    assert_conserved,
    bring_all,
    cases_of,
    worlds,
)

from dgc.codec import Codec

CODECS = {'fp16 int32': Codec('fp16', 'int32'), 'int8 packed': Codec('int8', 'packed')}
KINDS = ('normal', 'ties', 'one element', 'fewer elements than workers', 'less than k')


@pytest.mark.parametrize(
    ('row', 'workers', 'codec'),
    [(row, workers, 'fp16 int32') for row, workers in worlds((1, 3, 4, 6))]
    + [(row, workers, 'int8 packed') for row, workers in worlds((2, 5, 6, 8))],
)
def test_all_agree_and_nothing_is_lost(row, workers, codec):
    cases = cases_of(workers, whole=True, kinds=KINDS)
    ended = bring_all(EXCHANGES[row][0], cases, CODECS[codec])
    for case, end in zip(cases, ended, strict=True):
        assert_agree(case, end)
        assert_conserved(case, end)


@pytest.mark.parametrize('workers', [1, 5, 8])
@pytest.mark.parametrize('row', ['gtopk', 'gtopk doubling', 'spardl'])
def test_a_rounding_is_kept_by_one_worker_even_where_many_write_the_same(row, workers):
    """One worker has an element that int8 cannot write beside a larger one."""
    mine = torch.zeros(40)
    mine[3], mine[4] = 127.0, 0.4
    case = Case('', 2 * workers, [*[torch.zeros(40)] * (workers - 1), mine])
    [ended] = bring_all(EXCHANGES[row][0], [case], Codec('int8', 'int32'))
    kept = torch.stack([one.kept for one in ended])
    assert ended[0].total.nonzero().tolist() == [[3]]
    assert kept.nonzero()[:, 1].tolist() == [4]
    assert float(kept.sum()) == pytest.approx(0.4)


@pytest.mark.parametrize(('row', 'workers'), worlds((1, 2, 3, 12)))
def test_a_gradient_of_zeros_is_sent_and_nothing_comes_of_it(row, workers):
    """torch.topk chooses k zeros where there is nothing else: messages of explicit zeros."""
    case = Case('', 5, [torch.zeros(30)] * workers)
    for codec in (Codec(), CODECS['int8 packed']):
        [ended] = bring_all(EXCHANGES[row][0], [case], codec)
        for one in ended:
            assert not one.total.any()
            assert not one.kept.any()
