"""What Horovod's ranks agree on in a step: one collective a bucket, by names that it has cached."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.horovod, pytest.mark.xdist_group('horovodrun 3')]


@pytest.mark.parametrize(
    'row', ['dense', 'dense, small buckets', 'dgc', 'dgc small buckets', 'dgc per tensor']
)
def test_one_a_bucket_and_the_same_names_in_every_step(worlds, row):
    world = worlds('horovodrun', 3)
    for buckets, compressed_last, steps in world.run('real_worker:negotiations', row):
        # Where the last bucket is compressed, whether any rank lacks a gradient is one more.
        assert [len(names) for names in steps] == [buckets + compressed_last] * len(steps)
        assert all(names == steps[0] for names in steps)
