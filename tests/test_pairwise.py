"""The helper that replaces full products of parameters by rows that cover all pairs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pairwise import by_pairs, pairs

SHAPES = st.lists(st.integers(1, 5), min_size=2, max_size=4)


def pairs_in(rows: Iterable[tuple]) -> set[tuple]:
    """(factor, value, factor, value) of all rows."""
    return {
        (a, row[a], b, row[b])
        for row in rows
        for a, b in itertools.combinations(range(len(row)), 2)
    }


def factors_of(shape: list[int]) -> dict[str, range]:
    return {'abcd'[place]: range(length) for place, length in enumerate(shape)}


@given(SHAPES)
def test_every_pair_of_the_product_is_covered(shape):
    rows = pairs(factors_of(shape))
    assert pairs_in(rows) == pairs_in(itertools.product(*map(range, shape)))


@given(SHAPES, st.integers(2, 7), st.data())
def test_with_constraints_the_pairs_are_those_of_the_allowed_rows(shape, modulus, data):
    refused = data.draw(st.integers(0, modulus - 1))
    product = itertools.product(*map(range, shape))
    allowed = [row for row in product if (row[0] + 2 * row[1]) % modulus != refused]
    if any({row[i] for row in allowed} != set(range(shape[i])) for i in range(len(shape))):
        return  # refused, as the test of values without a row states
    rows = pairs(factors_of(shape), lambda a, b: (a + 2 * b) % modulus != refused)
    assert set(rows) <= set(allowed)
    assert pairs_in(rows) == pairs_in(allowed)


@given(SHAPES)
def test_rows_are_distinct_in_the_order_of_the_product_and_the_same_each_time(shape):
    rows = pairs(factors_of(shape))
    assert rows == sorted(set(rows))
    assert rows == pairs(factors_of(shape))


def test_the_rows_are_close_to_the_fewest_possible():
    """10 × 4 × 3 × 2 = 240 rows; no array has fewer than the 10 × 4 of the two longest factors."""
    rows = pairs(factors_of([10, 4, 3, 2]))
    assert 40 <= len(rows) <= 44


def test_two_factors_are_their_full_product():
    assert pairs({'row': 'xyz', 'size': (2, 3)}) == list(itertools.product('xyz', (2, 3)))


def test_one_factor_is_its_values():
    assert pairs({'row': 'xyz'}) == [('x',), ('y',), ('z',)]


def test_constraints_over_different_factors_hold_together():
    rows = pairs(
        {'row': 'xy', 'size': (2, 3, 4), 'steps': (1, 5)},
        lambda row, size: row != 'y' or size != 3,
        lambda steps, size: steps < 5 or size > 2,
    )
    assert ('y', 3) not in {row[:2] for row in rows}
    assert (2, 5) not in {row[1:] for row in rows}
    assert {('x', 3), ('y', 2), ('y', 4)} <= {row[:2] for row in rows}


def test_a_pair_that_no_allowed_row_contains_is_left_out():
    """a=1 needs b=1 and b=1 needs c=1, so a=1 with c=0 cannot be."""
    rows = pairs({'a': (0, 1), 'b': (0, 1), 'c': (0, 1)}, lambda a, b: a <= b, lambda b, c: b <= c)
    assert (0, 1, 2, 0) not in pairs_in(rows)
    assert pairs_in(rows) == pairs_in([(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)])


def test_unhashable_values_serve():
    assert ([], {}) in pairs({'a': ([], [1]), 'b': ({},)})


@pytest.mark.parametrize(
    ('factors', 'constraint', 'message'),
    [
        ({'a': (), 'b': (1,)}, lambda a: True, 'the factor a has no values'),
        ({'a': (1, 2), 'b': (1,)}, lambda a: a > 1, 'no row with a=1 is allowed'),
        ({'a': (1,)}, lambda z: True, "names z, which is none of the factors ['a']"),
        ({'a': range(500), 'b': range(500)}, lambda a: True, '250000 rows, more than 200000'),
    ],
)
def test_what_cannot_be_covered_is_refused(factors, constraint, message):
    with pytest.raises(ValueError, match=message.replace('[', r'\[').replace(']', r'\]')):
        pairs(factors, constraint)


@pytest.mark.parametrize(*by_pairs({'letter': 'xy', 'number': (1, 2)}))
def test_pytest_takes_the_rows(letter, number):
    assert letter in 'xy' and number in (1, 2)
