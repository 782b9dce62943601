"""Processes that a launcher has started again do not meet the addresses of the dead ones."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from dgc.engines.torch_distributed import agree_on_prefix

SECONDS = timedelta(seconds=20)


def start(store: dist.Store, size: int, late: int = 0) -> list[str]:
    """The prefixes of ``size`` processes that start together; rank ``late`` starts last."""
    found = [''] * size

    def process(rank: int) -> None:
        found[rank] = agree_on_prefix(store, rank, size, SECONDS)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(size)]
    for rank in [*(r for r in range(size) if r != late), late]:
        threads[rank].start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize('size', [1, 2, 4])
@pytest.mark.parametrize('late', [0, 1])
def test_all_processes_have_one_prefix_and_another_after_each_start(size, late):
    store = dist.HashStore()
    prefixes = [start(store, size, min(late, size - 1)) for _ in range(5)]
    assert all(len(set(of_ranks)) == 1 for of_ranks in prefixes)
    assert len({of_ranks[0] for of_ranks in prefixes}) == 5


def test_a_start_that_was_cut_short_is_not_joined():
    """Rank 0 had listed the answers, and some ranks died before they read them."""
    store = dist.HashStore()
    store.set('dgc/start', 'dead')
    store.set('dgc/dead/answers', '["dead", "other", "other"]')
    (prefix,) = set(start(store, 3))
    assert prefix != 'dgc/dead'


@pytest.mark.parametrize('sizes', [(2, 4), (4, 2, 3), (1, 3)])
def test_the_number_of_processes_may_change_with_a_start(sizes):
    """Rank 0 comes last, so that the others read what it listed for fewer."""
    store = dist.HashStore()
    prefixes = [start(store, size) for size in sizes]
    assert all(len(set(of_ranks)) == 1 for of_ranks in prefixes)
    assert len({of_ranks[0] for of_ranks in prefixes}) == len(sizes)


def test_a_rank_that_is_never_listed_says_so():
    store = dist.HashStore()
    store.set('dgc/start', 'dead')
    with pytest.raises(RuntimeError, match='rank 0 has not listed rank 1'):
        agree_on_prefix(store, 1, 2, timedelta(seconds=0.1))
