"""A group's collectives, made of messages between two, against those of an engine of its size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dgc
from dgc.engines.group import Group, doublings

PARTITIONS = [(1, 1), (2, 1), (1, 5), (3, 2), (2, 3), (2, 4), (1, 7), (1, 8), (3, 5), (2, 8)]


def partition(groups: int, size: int, seed: int) -> list[list[int]]:
    """All ranks, in groups of equal size, each in some order."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randperm(groups * size, generator=draw).view(groups, size).tolist()


def tensor_of(engine: dgc.Engine, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """The input of member ``engine.rank``, the same in all groups."""
    draw = torch.Generator().manual_seed(100 * seed + engine.rank)
    return torch.randint(-9, 10, (5,), generator=draw).to(dtype)


def in_groups(parts: list[list[int]], worker) -> list[list]:
    """What ``worker(group)`` returns, by group and member."""

    def member(engine):
        return worker(Group(engine, next(ranks for ranks in parts if engine.rank in ranks)))

    results = dgc.simulate(sum(map(len, parts)), member)
    return [[results[rank] for rank in ranks] for ranks in parts]


def collectives(engine: dgc.Engine, dtype: torch.dtype) -> list[torch.Tensor]:
    """Results of every collective, with every root."""
    results = [engine.all_reduce(tensor_of(engine, dtype, 1))]
    results.append(engine.all_gather(tensor_of(engine, dtype, 2)))
    for root in range(engine.size):
        results.append(engine.broadcast(tensor_of(engine, dtype, 3 + root), root))  # noqa: PERF401
    after, before = (engine.rank + 1) % engine.size, (engine.rank - 1) % engine.size
    results.append(engine.send_recv(tensor_of(engine, dtype, 2), after, before))
    engine.barrier()
    return results


@pytest.mark.parametrize('dtype', [torch.float32, torch.int64, torch.uint8])
@pytest.mark.parametrize(('groups', 'size'), PARTITIONS)
def test_a_group_is_an_engine_of_its_members(groups, size, dtype):
    right = dgc.simulate(size, lambda engine: collectives(engine, dtype))
    for members in in_groups(
        partition(groups, size, seed=groups), lambda group: collectives(group, dtype)
    ):
        for ours, theirs in zip(members, right, strict=True):
            assert all(map(torch.equal, ours, theirs))


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(0, 999))
def test_any_partition_into_groups_works(groups, size, seed):
    right = dgc.simulate(size, lambda engine: collectives(engine, torch.float32))
    for members in in_groups(
        partition(groups, size, seed), lambda group: collectives(group, torch.float32)
    ):
        for ours, theirs in zip(members, right, strict=True):
            assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize('size', [1, 2, 3, 5, 8])
def test_reduce_leaves_the_sum_with_the_first(size):
    def worker(group):
        return group.reduce(torch.full((2, 3), float(group.rank + 1)))

    [members] = in_groups([list(range(size))], worker)
    assert torch.equal(members[0], torch.full((2, 3), size * (size + 1) / 2))


@pytest.mark.parametrize('size', [1, 2, 3, 5, 6, 8])
def test_sums_of_floats_are_alike_on_all_members(size):
    def worker(group):
        draw = torch.Generator().manual_seed(group.rank)
        return group.all_reduce(torch.randn(50, generator=draw))

    [members] = in_groups(partition(1, size, seed=0), worker)
    for other in members:
        assert torch.equal(other, members[0])
    singles = [torch.randn(50, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    torch.testing.assert_close(members[0], sum(singles))


def test_any_shape_is_summed_and_broadcast_in_place():
    def worker(group):
        ours = torch.full((2, 2), float(group.rank)).t()
        assert group.all_reduce(ours) is ours
        scalar = torch.tensor(float(group.rank))
        assert group.broadcast(scalar, 1) is scalar
        return ours.tolist(), scalar.item()

    assert in_groups([[2, 0, 1]], worker) == [[([[3, 3], [3, 3]], 1.0)] * 3]


@pytest.mark.parametrize('size', [1, 2, 3, 5, 8, 9])
def test_a_gather_takes_as_many_rounds_as_there_are_doublings(size):
    """Bruck's: each of the others' parts comes once."""

    def worker(engine):
        Group(engine, range(size)).all_gather(torch.zeros(5))
        return engine.traffic.messages, engine.traffic.sent, engine.traffic.received

    rounds = (size - 1).bit_length()
    assert dgc.simulate(size, worker) == [(rounds, 20 * (size - 1), 20 * (size - 1))] * size


def test_doublings():
    assert [list(doublings(size)) for size in (1, 2, 3, 4, 5, 9)] == [
        [],
        [1],
        [1, 2],
        [1, 2],
        [1, 2, 4],
        [1, 2, 4, 8],
    ]
