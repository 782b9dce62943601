"""SAMomentum against a plain reference, element by element, and its law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dgc_helpers import bucket_of, keep_count

from dgc.compressors import Dense, TopK
from dgc.exchanges.base import Exchanged
from dgc.memory import SAMomentum
from dgc.sparse import Sparse

N, MOMENTUM = 60, np.float32(0.9)


def plain(u: list, gradient: list, k: int) -> tuple[list, list[int]]:
    """Algorithm 2 of the paper for one step, in float32: what u is before it is sent, and which
    elements are."""
    u = [MOMENTUM * each + g for each, g in zip(u, gradient, strict=True)]
    sent = sorted(range(len(u)), key=lambda i: -abs(u[i]))[:k]
    return u, sorted(sent)


@pytest.mark.parametrize('density', [0.02, 0.1, 0.5])
def test_each_element_is_the_references(density):
    memory, draw = SAMomentum(), torch.Generator().manual_seed(3)
    bucket = bucket_of(torch.zeros(N), memory.buffers, float(MOMENTUM), density=density)
    reference = [np.float32(0)] * N
    for _ in range(50):
        gradient = torch.randn(N, generator=draw)
        bucket.gradient.copy_(gradient)
        reference, sent = plain(reference, list(gradient.numpy()), keep_count(N, density))
        selected = memory.select(bucket, TopK())
        assert selected.indices.tolist() == sent
        assert selected.values.tolist() == [float(reference[i]) for i in sent]
        memory.update(bucket, selected, Exchanged([selected]), [])
        reference = [u if i in sent else u / MOMENTUM for i, u in enumerate(reference)]
        assert bucket.buffers['momentum'].tolist() == [float(u) for u in reference]


def test_its_law():
    """Unsent, m·u' = u; sent, u' = u; and the next step adds an error e of the codec as e."""
    memory = SAMomentum()
    bucket = bucket_of(torch.randn(N), memory.buffers, 0.9, density=0.1)
    selected = memory.select(bucket, TopK())
    before = bucket.buffers['momentum'].clone()
    error = Sparse(torch.full_like(selected.values, 0.125), selected.indices, N)
    memory.update(bucket, selected, Exchanged([selected], error), [])
    after = bucket.buffers['momentum']
    unsent = torch.ones(N, dtype=torch.bool)
    unsent[selected.indices] = False
    torch.testing.assert_close(0.9 * after[unsent], before[unsent])
    torch.testing.assert_close(
        0.9 * after[selected.indices], 0.9 * before[selected.indices] + error.values
    )


def test_an_element_that_waits_is_a_larger_batch():
    """After T steps without being sent, u is the sum of its gradients."""
    memory = SAMomentum()
    bucket = bucket_of(torch.zeros(4), memory.buffers, 0.5, density=0.25)
    for step in range(1, 9):
        bucket.gradient.copy_(torch.tensor([100.0, 1.0, 2.0, 3.0]))
        selected = memory.select(bucket, TopK())
        assert selected.indices.tolist() == [0]
        assert bucket.buffers['momentum'][1:].tolist() == [step * g for g in (1.0, 2.0, 3.0)]
        memory.update(bucket, selected, Exchanged([selected]), [])


def test_dense_is_momentum():
    memory = SAMomentum()
    bucket = bucket_of(torch.ones(3), memory.buffers, 0.5)
    for expected in (1.0, 1.5, 1.75):
        selected = memory.select(bucket, Dense())
        assert selected.values.tolist() == [expected] * 3
        memory.update(bucket, selected, Exchanged([selected]), [])


@pytest.mark.parametrize(
    ('momentum', 'nesterov', 'remedy'), [(0.0, False, 'above 0'), (0.9, True, 'nesterov to False')]
)
def test_momenta_it_has_no_rule_for_are_refused(momentum, nesterov, remedy):
    with pytest.raises(ValueError, match=remedy):
        SAMomentum().check(momentum, nesterov)
