"""Each exchange against its plain twin in exchange_reference.py, also where that is hard: one rank
and many, ties and cancellation, more ranks than elements, empty messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import exchange_reference as reference
import pytest
import torch
from documented import documented
from exchange_helpers import (
    KINDS,
    WORLD_SIZES,
    Case,
    FirstLargest,
    assert_agree,
    assert_conserved,
    cases_of,
    largest,
    lost,
    run_all,
)
from exchange_reference import Outcome, Size
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
)

Plain = Callable[[list[Tensor], int], Outcome]


def oktopk(messages: list[Tensor], k: int) -> Outcome:
    """With the regions and the threshold of a first step."""
    return reference.oktopk(messages, k, reference.region_bounds(messages))[0]


def bruck(corrected: list[Tensor], k: int, teams: int) -> Outcome:
    """With the sizes of a first step."""
    blocks = len(corrected) // teams
    sizes = [Size(max(-(-k // blocks), 1)) for _ in range(blocks)]
    return reference.spardl(corrected, k, teams, sizes)


def of_largest(plain: Plain, corrected: list[Tensor], k: int) -> Outcome:
    """An exchange of the ``k`` largest elements; what is not sent stays in the residual."""
    messages = [largest(flat, k) for flat in corrected]
    outcome = plain(messages, k)
    residuals = zip(corrected, messages, outcome.residuals, strict=True)
    return outcome._replace(residuals=[flat - sent + rest for flat, sent, rest in residuals])


def by_machines(plain: Plain, local_size: int, corrected: list[Tensor], k: int) -> Outcome:
    """An exchange between machines of ``local_size`` ranks."""
    return reference.hierarchical(corrected, local_size, lambda sums: plain(sums, k))


class Row(NamedTuple):
    """An exchange, and its plain twin.

    divisor: of the world size. corrected: inputs are corrected gradients, not sparse messages.
    """

    make: Callable[[], Exchange]
    plain: Plain
    divisor: int = 1
    corrected: bool = False


def spardl(teams: int = 1, gather: Bruck | None = None) -> SparDL:
    return SparDL(teams, gather, FirstLargest())


TABLE = {
    'all-gather': Row(AllGather, lambda messages, k: reference.all_gather(messages)),
    # As docs/adding.md adds it: another way to the same sum.
    'ring': Row(
        documented('dgc/exchanges/ring.py').Ring,
        lambda messages, k: reference.all_gather(messages),
    ),
    'gtopk': Row(GTopK, reference.gtopk),
    'gtopk doubling': Row(GTopKDoubling, reference.gtopk_doubling),
    'oktopk': Row(OkTopK, oktopk),
    'spardl': Row(spardl, reference.spardl, corrected=True),
    'spardl 2 teams': Row(partial(spardl, 2), partial(reference.spardl, teams=2), 2, True),
    'spardl 4 teams': Row(partial(spardl, 4), partial(reference.spardl, teams=4), 4, True),
    'spardl 2 teams, Bruck': Row(lambda: spardl(2, Bruck()), partial(bruck, teams=2), 2, True),
    'spardl 3 teams': Row(partial(spardl, 3), partial(bruck, teams=3), 3, True),
    'chunks of 4': Row(
        partial(ChunkAllReduce, 4), partial(reference.chunk_all_reduce, chunk=4), corrected=True
    ),
    'chunks of 7': Row(
        partial(ChunkAllReduce, 7), partial(reference.chunk_all_reduce, chunk=7), corrected=True
    ),
    'machines of 2, gtopk': Row(
        lambda: Hierarchical(GTopK(), 2),
        partial(by_machines, partial(of_largest, reference.gtopk), 2),
        2,
        True,
    ),
    'machines of 3, spardl': Row(
        lambda: Hierarchical(spardl(), 3), partial(by_machines, reference.spardl, 3), 3, True
    ),
}
WORLDS = [
    (row, world_size)
    for row in TABLE
    for world_size in WORLD_SIZES
    if world_size % TABLE[row].divisor == 0
]


class Compared(NamedTuple):
    """A case, the result of each rank, and the plain twin's."""

    case: Case
    results: list
    expected: Outcome


@pytest.fixture(scope='class', params=WORLDS, ids=lambda world: f'{world[0]}, {world[1]}')
def compared(request) -> list[Compared]:
    name, world_size = request.param
    row = TABLE[name]
    # Every second kind from four ranks on, and every third from seven: neighbours have the others.
    every = 1 + (world_size > 3) + (world_size > 6)
    kinds = tuple(KINDS)[world_size % every :: every]
    cases = cases_of(world_size, row.corrected, seeds=2 if world_size <= 3 else 1, kinds=kinds)
    return [
        Compared(case, results, row.plain(case.inputs, case.k))
        for case, results in zip(cases, run_all(row.make, cases), strict=True)
    ]


class TestPlainTwin:
    def test_all_ranks_have_the_same_contributions(self, compared):
        for case, results, _ in compared:
            assert_agree(case, results)

    def test_has_the_same_sum_bit_for_bit(self, compared):
        for case, results, expected in compared:
            assert torch.equal(results[0].total, expected.total), case.name

    def test_has_the_same_elements(self, compared):
        for case, results, expected in compared:
            sparse = [part.indices for part in results[0].contributions if not part.is_dense]
            if sparse:
                indices = torch.cat(sparse).unique()
                assert torch.equal(indices, expected.delivered.nonzero().view(-1)), case.name

    def test_has_the_same_residuals(self, compared):
        for case, results, expected in compared:
            for one, residual in zip(results, expected.residuals, strict=True):
                torch.testing.assert_close(
                    one.residual, residual, rtol=1e-6, atol=1e-6, msg=case.name
                )

    def test_loses_nothing_and_counts_nothing_twice(self, compared):
        for case, results, expected in compared:
            assert_conserved(case, results)
            assert float(lost(case, expected.total, expected.residuals).abs().max()) < 1e-5, (
                case.name
            )


@settings(deadline=None, max_examples=15)
@given(st.data())
@pytest.mark.parametrize('row', [name for name, row in TABLE.items() if row.divisor == 1])
def test_small_integers_end_as_in_the_plain_twin(row, data):
    """Messages of any length, in which almost everything ties or cancels."""
    world_size, numel = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, numel))
    numbers = st.lists(st.integers(-2, 2), min_size=numel, max_size=numel)
    inputs = [torch.tensor(data.draw(numbers)).float() for _ in range(world_size)]
    if not TABLE[row].corrected:
        inputs = [largest(flat, k) for flat in inputs]
    case = Case(row, k, inputs)
    [results], expected = run_all(TABLE[row].make, [case]), TABLE[row].plain(inputs, k)
    assert_agree(case, results)
    assert torch.equal(results[0].total, expected.total)
    for one, residual in zip(results, expected.residuals, strict=True):
        assert torch.equal(one.residual, residual)
