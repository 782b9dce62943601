"""Comparing saved states, bit for bit."""

from __future__ import annotations

import torch


def assert_same(one: object, other: object) -> None:
    """Assert equal types, keys, numbers and bits at every level of nested containers."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other
