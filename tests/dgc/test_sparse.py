import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.compressors.topk import largest
from dgc.sparse import (
    Sparse,
    contains,
    cut,
    difference,
    empty_message,
    gather,
    indices_of,
    join,
    mean_of_contributors,
    merge,
)


@pytest.fixture(params=[0, 10**9], ids=['by sorting', 'in tables'], scope='module', autouse=True)
def combined(request):
    """Both ways to combine messages are tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('dgc.sparse.CROWDED', request.param)
        patch.setattr('dgc.sparse.MARKED', request.param)
        yield


def message(numel: int, elements: dict[int, float]) -> Sparse:
    return Sparse(torch.tensor(list(elements.values())), torch.tensor(list(elements)), numel)


def test_gathered_elements_keep_their_positions():
    flat = torch.tensor([5.0, 6.0, 7.0, 8.0])
    assert gather(flat, torch.tensor([3, 1])).to_dense().tolist() == [0, 6, 0, 8]


def test_a_gathered_message_has_storage_of_its_own():
    flat = torch.tensor([5.0, 6.0])
    sparse = gather(flat, torch.tensor([0]))
    flat.zero_()
    assert sparse.values.tolist() == [5]


def test_adding_is_in_place_and_scaled():
    flat = torch.ones(3)
    assert message(3, {2: 4.0}).add_to(flat, alpha=0.5) is flat
    assert flat.tolist() == [1, 1, 3]


def test_a_dense_message_has_every_element_in_order():
    dense = Sparse(torch.tensor([1.0, 2.0]), None, 2)
    assert dense.is_dense
    assert dense.to_dense().tolist() == [1, 2]
    assert dense.add_to(torch.ones(2), alpha=-1.0).tolist() == [0, -1]


def test_an_empty_message_adds_nothing():
    empty = empty_message(3)
    assert not empty.is_dense
    assert empty.values.numel() == empty.indices.numel() == 0
    assert empty.to_dense().tolist() == [0, 0, 0]


def test_dense_and_sparse_messages_cannot_be_subtracted():
    with pytest.raises(ValueError, match='dense message and a sparse one'):
        difference(Sparse(torch.ones(2), None, 2), message(2, {0: 1.0}))


def test_dense_messages_are_subtracted_element_by_element():
    ours, theirs = (Sparse(torch.tensor(v), None, 2) for v in ([3.0, 4.0], [1.0, 5.0]))
    assert difference(ours, theirs).to_dense().tolist() == [2, -1]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_delivered_plus_difference_equals_ours_in_any_order_and_with_any_cut(data):
    numel = data.draw(st.integers(1, 12))
    positions = data.draw(st.lists(st.integers(0, numel - 1), unique=True))
    delivered = data.draw(st.permutations(positions))[: data.draw(st.integers(0, len(positions)))]
    ours = message(numel, {i: float(i + 1) for i in positions})
    theirs = message(numel, {i: 0.5 * (i + 1) for i in delivered})
    if not positions:
        ours = empty_message(numel)
    if not delivered:
        theirs = empty_message(numel)
    error = difference(ours, theirs)
    assert torch.equal(error.add_to(theirs.to_dense()), ours.to_dense())


NUMEL = 12
NAN, INF = float('nan'), float('inf')
integers = st.integers(-3, 3).map(float)
special = st.one_of(integers, st.sampled_from([NAN, INF, -INF]))


def messages(values=integers):
    """Elements of a message of NUMEL by position."""
    return st.dictionaries(st.integers(0, NUMEL - 1), values)


def sparse_of(elements: dict[int, float]) -> Sparse:
    """A message of these elements, in order of position."""
    if not elements:
        return empty_message(NUMEL)
    return message(NUMEL, dict(sorted(elements.items())))


def elements_of(sparse: Sparse) -> dict[int, float]:
    """Elements by position. A message has ascending, unique indices."""
    indices = indices_of(sparse).tolist()
    assert indices == sorted(set(indices))
    assert sparse.values.dtype == torch.float32
    assert sparse.numel == NUMEL
    return dict(zip(indices, sparse.values.tolist(), strict=True))


@settings(deadline=None, max_examples=100)
@given(st.lists(messages(), min_size=1, max_size=5))
def test_a_merged_message_has_every_index_and_the_sum_of_its_values(parts):
    expected = defaultdict(float)
    for part in parts:
        for index, value in part.items():
            expected[index] += value
    assert elements_of(merge([sparse_of(part) for part in parts])) == expected


@settings(deadline=None, max_examples=100)
@given(st.lists(messages(), min_size=1, max_size=5))
def test_the_mean_of_contributors_divides_by_how_many_messages_have_the_index(parts):
    values = defaultdict(list)
    for part in parts:
        for index, value in part.items():
            values[index].append(value)
    mean = elements_of(mean_of_contributors([sparse_of(part) for part in parts]))
    assert mean == {index: pytest.approx(sum(each) / len(each)) for index, each in values.items()}


def test_an_explicit_zero_counts_as_a_contribution():
    parts = [message(NUMEL, {3: 4.0}), message(NUMEL, {3: 0.0}), message(NUMEL, {5: 1.0})]
    assert elements_of(mean_of_contributors(parts)) == {3: 2, 5: 1}


def test_merging_adds_in_the_order_of_the_messages():
    """In any other order the sum is not zero."""
    numbers = [message(NUMEL, {3: value}) for value in (1e8, 1.0, -1e8)]
    assert elements_of(merge(numbers)) == {3: 0}


def test_an_index_whose_values_cancel_is_still_there():
    assert elements_of(merge([message(NUMEL, {3: 1.0}), message(NUMEL, {3: -1.0})])) == {3: 0}


@settings(deadline=None, max_examples=50)
@given(messages(), st.lists(st.integers(0, 3), min_size=NUMEL, max_size=NUMEL))
def test_joined_messages_have_the_elements_of_each(elements, owners):
    parts = [
        sparse_of({index: value for index, value in elements.items() if owners[index] == owner})
        for owner in range(4)
    ]
    assert elements_of(join(parts, NUMEL)) == elements


@settings(deadline=None, max_examples=200)
@given(messages(special), st.integers(1, NUMEL + 2))
def test_a_cut_keeps_the_first_k_of_the_sorted_elements(elements, k):
    """By magnitude, then by position; a NaN is as large as an infinity."""

    def rank(index):
        magnitude = abs(elements[index])
        return -(INF if math.isnan(magnitude) else magnitude), index

    order = sorted(elements, key=rank)
    kept, rest = cut(sparse_of(elements), k)
    assert list(elements_of(kept)) == sorted(order[:k])
    assert list(elements_of(rest)) == sorted(order[k:])
    for part in (kept, rest):
        for index, value in elements_of(part).items():
            assert value == elements[index] or (math.isnan(value) and math.isnan(elements[index]))


def test_a_nan_is_kept_before_later_elements_of_any_magnitude():
    kept, rest = cut(message(4, {0: NAN, 1: INF, 2: -INF, 3: 3e38}), 1)
    assert kept.indices.tolist() == [0]
    assert rest.indices.tolist() == [1, 2, 3]


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize('n, k', [(1, 1), (7, 7), (1000, 1), (1000, 600), (50_000, 49_999)])
def test_the_largest_are_the_first_of_a_stable_sort(dtype, n, k):
    magnitudes = torch.randn(n, generator=torch.Generator().manual_seed(n)).abs().to(dtype)
    chosen = magnitudes.sort(descending=True, stable=True).indices[:k]
    assert torch.equal(largest(magnitudes, k), chosen.sort().values)


def test_no_element_is_the_largest_of_none():
    assert largest(torch.ones(3), 0).tolist() == largest(torch.empty(0), 0).tolist() == []


def test_of_many_equal_elements_the_first_are_kept():
    """More than a partial sort would keep in order."""
    sparse = Sparse(torch.ones(5000), torch.arange(5000), 5000)
    kept, rest = cut(sparse, 1234)
    assert torch.equal(kept.indices, torch.arange(1234))
    assert torch.equal(rest.indices, torch.arange(1234, 5000))


@settings(deadline=None, max_examples=100)
@given(st.sets(st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_contains_is_membership(ascending, wanted):
    found = contains(
        torch.tensor(sorted(ascending), dtype=torch.int64),
        torch.tensor(wanted, dtype=torch.int64),
        21,
    )
    assert found.tolist() == [index in ascending for index in wanted]


def test_a_dense_message_has_no_indices():
    with pytest.raises(ValueError, match='all-reduce it instead'):
        indices_of(Sparse(torch.ones(2), None, 2))


def test_elements_are_chosen_by_a_mask():
    sparse = message(9, {1: 5.0, 4: 6.0, 8: 7.0})
    assert sparse.at(torch.tensor([True, False, True])).to_dense().nonzero().tolist() == [[1], [8]]
