"""A rank that stops is named, with the bucket that waits for it: failures row 14."""

from __future__ import annotations

import pytest
from stalled_worker import STOPPED


@pytest.mark.parametrize(
    'launcher',
    [
        pytest.param('torchrun', marks=pytest.mark.xdist_group('torchrun 3')),
        pytest.param(
            'horovodrun', marks=[pytest.mark.horovod, pytest.mark.xdist_group('horovodrun 3')]
        ),
    ],
)
def test_a_rank_that_stops_is_named_and_goes_on(launcher, worlds):
    """failures row 14, with real processes: SIGSTOP, a line, SIGCONT, and the run is complete."""
    results = worlds(launcher, 3).run('stalled_worker:pause', 2.0, seconds=60)
    assert all(finite for _, finite in results)
    lines = [line for lines, _ in results for line in lines]
    first = results[0][0][0]
    assert first.startswith('rank 0 has waited 2 s in ')
    assert ' of bucket ' in first
    assert f' for rank {STOPPED}, which does not answer: it is stopped' in first
    assert first.endswith('ends after 100 s (configs.engine.abort_seconds)')
    assert len(lines) <= 2  # and that the wait is over
