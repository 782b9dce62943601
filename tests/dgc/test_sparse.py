import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgc.sparse import Sparse, difference, gather, nothing


def message(numel: int, elements: dict[int, float]) -> Sparse:
    return Sparse(torch.tensor(list(elements.values())), torch.tensor(list(elements)), numel)


def test_what_was_gathered_is_put_back_where_it_was():
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


def test_nothing_adds_nothing():
    empty = nothing(3)
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
def test_delivered_and_difference_are_ours_in_any_order_and_with_any_cut(data):
    numel = data.draw(st.integers(1, 12))
    positions = data.draw(st.lists(st.integers(0, numel - 1), unique=True))
    delivered = data.draw(st.permutations(positions))[: data.draw(st.integers(0, len(positions)))]
    ours = message(numel, {i: float(i + 1) for i in positions})
    theirs = message(numel, {i: 0.5 * (i + 1) for i in delivered})
    if not positions:
        ours = nothing(numel)
    if not delivered:
        theirs = nothing(numel)
    left_out = difference(ours, theirs)
    assert torch.equal(left_out.add_to(theirs.to_dense()), ours.to_dense())
