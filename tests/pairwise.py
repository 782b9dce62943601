"""All-pairs covering arrays: few rows in which every pair of values of any two factors occurs.

A test over rows × sizes × steps costs the product of their lengths. Most faults need one value of
one factor, or two values of two factors together (Kuhn, Wallace, Gallo: "Software fault
interactions and implications for software testing", IEEE TSE 30(6), 2004). A covering array of
strength two visits every such pair in about the product of the two longest factors.

    @pytest.mark.parametrize(*by_pairs({'row': TABLE, 'size': SIZES, 'steps': (1, 5)}, fits))
    def test_workers_agree(row, size, steps): ...
"""

from __future__ import annotations

import heapq
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

LIMIT = 200_000  # rows of the full product, which is held in memory

Predicate = Callable[..., bool]
Pair = tuple[int, int, int, int]  # factor, index of its value, another factor, index of its value


def pairs(factors: Mapping[str, Iterable[Any]], *constraints: Predicate) -> list[tuple[Any, ...]]:
    """Rows that cover every pair of values which the constraints allow.

    The rows are chosen greedily from the allowed part of the full product: each is one that covers
    the most uncovered pairs, the first of these in the order of the product. The result depends on
    nothing but the arguments.

    Args:
        factors: name of each factor to its values, in order.
        constraints: predicates over factors, which they name as their parameters. A row is allowed
            where all of them hold: ``lambda row, size: fits(row, size)``.

    Returns:
        The rows, each with one value per factor, in the order of the full product.

    Raises:
        ValueError: a factor without values or a value which no allowed row contains, a constraint
            over an unknown factor, or a product of more than ``LIMIT`` rows.
    """
    values = {name: list(of_factor) for name, of_factor in factors.items()}
    rows = _allowed(values, constraints)
    chosen = _cover([_pairs_of(row) for row in rows])
    lists = list(values.values())
    return [
        tuple(of_factor[index] for of_factor, index in zip(lists, rows[position], strict=True))
        for position in sorted(chosen)
    ]


def by_pairs(
    factors: Mapping[str, Iterable[Any]], *constraints: Predicate
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The arguments of ``pytest.mark.parametrize`` for the rows of ``pairs``."""
    return list(factors), pairs(factors, *constraints)


def _allowed(
    values: Mapping[str, list[Any]], constraints: Iterable[Predicate]
) -> list[tuple[int, ...]]:
    """Indices of the values in each row of the full product that all constraints allow."""
    size = 1
    for name, of_factor in values.items():
        if not of_factor:
            raise ValueError(f'the factor {name} has no values')
        size *= len(of_factor)
    if size > LIMIT:
        raise ValueError(f'the full product has {size} rows, more than {LIMIT}: split the factors')
    rows = list(itertools.product(*(range(len(of_factor)) for of_factor in values.values())))
    names = list(values)
    for constraint in constraints:
        places = _places(constraint, names)
        columns = [values[names[place]] for place in places]
        holds: dict[Hashable, bool] = {}  # a constraint over few factors repeats itself
        kept = []
        for row in rows:
            key = tuple(row[place] for place in places)
            if key not in holds:
                arguments = (column[i] for column, i in zip(columns, key, strict=True))
                holds[key] = bool(constraint(*arguments))
            if holds[key]:
                kept.append(row)
        rows = kept
    for place, name in enumerate(names):
        lost = set(range(len(values[name]))) - {row[place] for row in rows}
        if lost:
            raise ValueError(f'no row with {name}={values[name][min(lost)]!r} is allowed')
    return rows


def _places(constraint: Predicate, names: list[str]) -> list[int]:
    """Positions of the factors that a constraint names as its parameters."""
    parameters = list(inspect.signature(constraint).parameters)
    unknown = [name for name in parameters if name not in names]
    if unknown:
        raise ValueError(f'a constraint names {unknown[0]}, which is none of the factors {names}')
    return [names.index(name) for name in parameters]


def _pairs_of(row: tuple[int, ...]) -> frozenset[Pair]:
    """All pairs of values in a row; the single value where there is one factor."""
    if len(row) == 1:
        return frozenset({(0, row[0], 0, row[0])})
    return frozenset((a, row[a], b, row[b]) for a, b in itertools.combinations(range(len(row)), 2))


def _cover(pairs_of: list[frozenset[Pair]]) -> list[int]:
    """Positions of rows that cover the union of all pairs, chosen greedily.

    The number of uncovered pairs of a row never grows, so a count from an earlier round is an upper
    bound: a row whose fresh count is still at the top of the heap is the best one (Minoux, 1978).
    """
    uncovered = set().union(*pairs_of)
    heap = [(-len(covered), position) for position, covered in enumerate(pairs_of)]
    heapq.heapify(heap)
    chosen = []
    while uncovered:
        _, position = heapq.heappop(heap)
        fresh = (-len(pairs_of[position] & uncovered), position)
        if heap and fresh > heap[0]:
            heapq.heappush(heap, fresh)
            continue
        chosen.append(position)
        uncovered -= pairs_of[position]
    return chosen
