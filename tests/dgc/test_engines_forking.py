"""Forked processes leave alone what they inherit: destructors may wait for threads they lack."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest

import dgc.engines.lighthouse  # noqa: F401 (which registers the hooks)
from dgc.engines.forking import Inherited


class Garbage:
    """An object in a circle, whose destructor is noted."""

    destroyed = 0

    def __init__(self) -> None:
        self.circle = self

    def __del__(self) -> None:
        Garbage.destroyed += 1


def in_child(function: Callable[[], int]) -> int:
    """Return what ``function`` returns in a forked process."""
    pid = os.fork()
    if not pid:
        os._exit(function())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_nothing_is_destroyed_from_the_first_allocation_on():
    """Whenever the collector is about to run: after so many allocations from here."""
    in_parents = []
    for room in range(1, 60):
        before, threshold = Garbage.destroyed, gc.get_threshold()
        gc.collect()
        try:
            Garbage()
            gc.set_threshold(gc.get_count()[0] + room)
            in_childs = in_child(lambda before=before: Garbage.destroyed - before)
            in_parents.append(Garbage.destroyed - before)
        finally:
            gc.set_threshold(*threshold)
        # Before the fork, this process may have destroyed it itself.
        assert in_childs <= in_parents[-1], room
    assert not all(in_parents)


def test_what_a_child_makes_is_collected():
    def makes() -> int:
        before = Garbage.destroyed
        Garbage()
        gc.collect()
        return Garbage.destroyed - before if gc.isenabled() else 100

    gc.collect()
    Garbage()  # which it inherits
    assert in_child(makes) == 1
    before = Garbage.destroyed
    gc.collect()
    assert Garbage.destroyed == before + 1  # this process still destroys its own


@pytest.mark.parametrize('enabled', [True, False])
def test_the_collector_is_on_afterwards_if_it_was(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        assert in_child(gc.isenabled) == enabled
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_forks_of_several_threads_at_a_time():
    inherited = Inherited()
    inherited.before()
    inherited.before()
    inherited.in_parent()
    assert not gc.isenabled()
    inherited.in_parent()
    assert gc.isenabled()
