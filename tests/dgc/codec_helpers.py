"""Messages for the tests of the codec, and every pair of codings.

LISTED has the pairs for sparse messages, TYPES also those for dense ones.
"""

from itertools import product

import pytest
import torch
from hypothesis import strategies as st

from dgc.codec import INDICES, VALUES
from dgc.sparse import Sparse

TYPES = list(product(VALUES, INDICES))
LISTED = [(values, indices) for values, indices in TYPES if indices != 'none']
every_type = pytest.mark.parametrize(('values', 'indices'), TYPES)
every_listed_type = pytest.mark.parametrize(('values', 'indices'), LISTED)
FLOAT_MAX = torch.finfo(torch.float32).max


def message(elements: dict[int, float], numel: int) -> Sparse:
    """The elements in the order of their indices."""
    ordered = dict(sorted(elements.items()))
    return Sparse(
        torch.tensor(list(ordered.values()), dtype=torch.float32),
        torch.tensor(list(ordered), dtype=torch.int64),
        numel,
    )


def fitting(sparse: Sparse, indices: str) -> Sparse:
    """A sparse message, or the same as a dense one where the index coding writes only those."""
    return Sparse(sparse.to_dense(), None, sparse.numel) if indices == 'none' else sparse


def eights(indices: str) -> Sparse:
    """A message, of the kind that the index coding writes, that no value coding rounds."""
    if indices == 'none':
        return Sparse(torch.tensor([8.0, -8.0, 8.0, 8.0, 8.0, -8.0]), None, 6)
    return message({1: -8.0, 4: 8.0}, 6)


def messages(low: float, high: float):
    """Messages of up to 20 of 50 elements, whose magnitudes lie in a range."""
    magnitudes = st.floats(low, high, width=32)
    elements = st.one_of(magnitudes, magnitudes.map(lambda value: -value), st.just(0.0))
    return st.dictionaries(st.integers(0, 49), elements, max_size=20).map(
        lambda elements: message(elements, 50)
    )


ANY = st.one_of(messages(2.0**-10, 2.0**10), messages(2.0**-126, FLOAT_MAX))
