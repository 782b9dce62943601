"""Each exchange against its slow twin in dgc/exchanges/reference.py, for what is hard to get right:
few workers and many, ties and cancellation, more workers than elements, empty messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from exchange_helpers import (
    KINDS,
    WORKERS,
    Case,
    FirstLargest,
    assert_agree,
    assert_conserved,
    bring_all,
    cases_of,
    largest,
    lost,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dgc.exchanges import (
    AllGather,
    Bruck,
    ChunkAllReduce,
    Exchange,
    GTopK,
    GTopKDoubling,
    Hierarchical,
    OkTopK,
    SparDL,
    reference,
)
from dgc.exchanges.reference import Outcome, Size

Slow = Callable[[list[Tensor], int], Outcome]


def oktopk(messages: list[Tensor], k: int) -> Outcome:
    """With the regions and the threshold of a first step."""
    return reference.oktopk(messages, k, reference.region_bounds(messages))[0]


def bruck(corrected: list[Tensor], k: int, teams: int) -> Outcome:
    """With the sizes of a first step."""
    blocks = len(corrected) // teams
    sizes = [Size(max(-(-k // blocks), 1)) for _ in range(blocks)]
    return reference.spardl(corrected, k, teams, sizes)


def from_all(slow: Slow, corrected: list[Tensor], k: int) -> Outcome:
    """An exchange of messages, of the ``k`` largest; what is not sent is kept."""
    messages = [largest(flat, k) for flat in corrected]
    outcome = slow(messages, k)
    kept = zip(corrected, messages, outcome.kept, strict=True)
    return outcome._replace(kept=[flat - message + rest for flat, message, rest in kept])


def by_machines(slow: Slow, local_size: int, corrected: list[Tensor], k: int) -> Outcome:
    """An exchange between machines of so many workers."""
    return reference.hierarchical(corrected, local_size, lambda sums: slow(sums, k))


class Row(NamedTuple):
    """An exchange, and its slow twin.

    divisor: of the number of workers. whole: everything is brought, not only messages.
    """

    make: Callable[[], Exchange]
    slow: Slow
    divisor: int = 1
    whole: bool = False


def spardl(teams: int = 1, gather: Bruck | None = None) -> SparDL:
    return SparDL(teams, gather, FirstLargest())


TABLE = {
    'all-gather': Row(AllGather, lambda messages, k: reference.all_gather(messages)),
    'gtopk': Row(GTopK, reference.gtopk),
    'gtopk doubling': Row(GTopKDoubling, reference.gtopk_doubling),
    'oktopk': Row(OkTopK, oktopk),
    'spardl': Row(spardl, reference.spardl, whole=True),
    'spardl 2 teams': Row(partial(spardl, 2), partial(reference.spardl, teams=2), 2, True),
    'spardl 4 teams': Row(partial(spardl, 4), partial(reference.spardl, teams=4), 4, True),
    'spardl 2 teams, Bruck': Row(lambda: spardl(2, Bruck()), partial(bruck, teams=2), 2, True),
    'spardl 3 teams': Row(partial(spardl, 3), partial(bruck, teams=3), 3, True),
    'chunks of 4': Row(
        partial(ChunkAllReduce, 4), partial(reference.chunk_all_reduce, chunk=4), whole=True
    ),
    'chunks of 7': Row(
        partial(ChunkAllReduce, 7), partial(reference.chunk_all_reduce, chunk=7), whole=True
    ),
    'machines of 2, gtopk': Row(
        lambda: Hierarchical(GTopK(), 2),
        partial(by_machines, partial(from_all, reference.gtopk), 2),
        2,
        True,
    ),
    'machines of 3, spardl': Row(
        lambda: Hierarchical(spardl(), 3), partial(by_machines, reference.spardl, 3), 3, True
    ),
}
WORLDS = [
    (row, workers) for row in TABLE for workers in WORKERS if workers % TABLE[row].divisor == 0
]


class Met(NamedTuple):
    """A case, what the workers have in the end, and what they should."""

    case: Case
    ended: list
    right: Outcome


@pytest.fixture(scope='class', params=WORLDS, ids=lambda world: f'{world[0]}, {world[1]}')
def met(request) -> list[Met]:
    name, workers = request.param
    row = TABLE[name]
    kinds = tuple(KINDS) if workers <= 6 else tuple(KINDS)[workers % 2 :: 2]
    cases = cases_of(workers, row.whole, seeds=2 if workers <= 3 else 1, kinds=kinds)
    return [
        Met(case, ended, row.slow(case.inputs, case.k))
        for case, ended in zip(cases, bring_all(row.make, cases), strict=True)
    ]


class TestItsSlowTwin:
    def test_all_workers_have_the_same_parts(self, met):
        for case, ended, _ in met:
            assert_agree(case, ended)

    def test_has_the_same_sum_bit_for_bit(self, met):
        for case, ended, right in met:
            assert torch.equal(ended[0].total, right.total), case.name

    def test_has_the_same_elements(self, met):
        for case, ended, right in met:
            sparse = [part.indices for part in ended[0].parts if not part.is_dense]
            if sparse:
                indices = torch.cat(sparse).unique()
                assert torch.equal(indices, right.delivered.nonzero().view(-1)), case.name

    def test_has_each_worker_keep_the_same(self, met):
        for case, ended, right in met:
            for one, kept in zip(ended, right.kept, strict=True):
                torch.testing.assert_close(one.kept, kept, rtol=1e-6, atol=1e-6, msg=case.name)

    def test_loses_nothing_and_counts_nothing_twice(self, met):
        for case, ended, right in met:
            assert_conserved(case, ended)
            assert float(lost(case, right.total, right.kept).abs().max()) < 1e-5, case.name


@settings(deadline=None, max_examples=15)
@given(st.data())
@pytest.mark.parametrize('row', [name for name, row in TABLE.items() if row.divisor == 1])
def test_small_whole_numbers_end_as_in_the_slow_twin(row, data):
    """Messages of any length, in which almost everything ties or cancels."""
    workers, numel = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, numel))
    numbers = st.lists(st.integers(-2, 2), min_size=numel, max_size=numel)
    inputs = [torch.tensor(data.draw(numbers)).float() for _ in range(workers)]
    if not TABLE[row].whole:
        inputs = [largest(flat, k) for flat in inputs]
    case = Case(row, k, inputs)
    [ended], right = bring_all(TABLE[row].make, [case]), TABLE[row].slow(inputs, k)
    assert_agree(case, ended)
    assert torch.equal(ended[0].total, right.total)
    for one, kept in zip(ended, right.kept, strict=True):
        assert torch.equal(one.kept, kept)
