"""What is done with the gradients of all parameters of a bucket, in one call for all of them.

Each function has a twin in plain Python (``…_plainly``), which describes it, and serves where the
C++ library is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from dgc import ops
from dgc.ops.contract import is_aligned


def lend(gradients: Sequence[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], list[int]]:
    """Return the gradients that may be overwritten where autograd stored them.

    Those are contiguous, aligned, of this type, and the only reference to their storage.

    Args:
        gradients: Of the parameters of a bucket.
        dtype: Of the bucket.

    Returns:
        These gradients, flat, with a version of their own; and the places of the others.
    """
    if ops.is_native(torch.device('cpu')):
        return torch.ops.dgc.lend(gradients, dtype)
    return lend_plainly(gradients, dtype)


def lend_plainly(gradients: Sequence[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], list[int]]:
    """Compute ``lend``. Without the C++ library, ``ops.is_sole`` is False, and nothing is lent."""
    lent, others = [], []
    for place, gradient in enumerate(gradients):
        fits = gradient.dtype == dtype and not gradient.is_sparse and gradient.is_contiguous()
        if fits and is_aligned(gradient) and ops.is_sole(gradient):
            lent.append(gradient.data.view(-1))
        else:
            others.append(place)
    return lent, others


def gather(flat: Tensor, gradients: Sequence[Tensor], offsets: Sequence[int]) -> None:
    """Copy each gradient to ``flat[n]``, from its offset on, in the order of its shape.

    A sparse one is copied as a dense one.
    """
    if ops.is_native(flat.device):
        torch.ops.dgc.gather(flat, gradients, offsets)
    else:
        gather_plainly(flat, gradients, offsets)


def gather_plainly(flat: Tensor, gradients: Sequence[Tensor], offsets: Sequence[int]) -> None:
    """Compute ``gather``, with one call for all that are dense: on a GPU a call for each takes long
    to start."""
    places, values = [], []
    for gradient, begin in zip(gradients, offsets, strict=True):
        place = flat[begin : begin + gradient.numel()].view(gradient.shape)
        if gradient.is_sparse:
            place.copy_(gradient.to_dense())
            continue
        places.append(place)
        values.append(gradient.detach())  # with create_graph=True it has a graph
    if places:
        torch._foreach_copy_(places, values)


def touched(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    versions: Sequence[int],
    addresses: Sequence[int],
) -> list[int]:
    """Return the places of the parameters whose ``.grad`` is not what it was, or was written to.

    Args:
        parameters: Whose ``.grad`` is looked at.
        gradients: What it was.
        versions, addresses: Of each gradient then.
    """
    if parameters and ops.is_native(parameters[0].device):
        return torch.ops.dgc.touched(parameters, gradients, versions, addresses)
    return touched_plainly(parameters, gradients, versions, addresses)


def touched_plainly(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    versions: Sequence[int],
    addresses: Sequence[int],
) -> list[int]:
    """Compute ``touched``."""
    were = zip(parameters, gradients, versions, addresses, strict=True)
    return [
        place
        for place, (parameter, gradient, version, begin) in enumerate(were)
        # gradient.data = … changes neither the object nor its version.
        if parameter.grad is not gradient
        or gradient._version != version
        or address(gradient) != begin
    ]


def show(parameters: Sequence[Tensor], flat: Tensor, offsets: Sequence[int]) -> None:
    """Make every ``.grad`` the view of ``flat[n]`` that begins at its offset, in the shape of its
    parameter, with a version of its own."""
    if ops.is_native(flat.device):
        torch.ops.dgc.show(parameters, flat, offsets)
    else:
        show_plainly(parameters, flat, offsets)


def show_plainly(parameters: Sequence[Tensor], flat: Tensor, offsets: Sequence[int]) -> None:
    """Compute ``show``."""
    for parameter, begin in zip(parameters, offsets, strict=True):
        part = flat[begin : begin + parameter.numel()]
        parameter.grad = part.view(parameter.shape).data


def fit(tensors: Sequence[Tensor]) -> bool:
    """Return whether the C++ kernels can read and write all of these tensors."""
    if ops.is_native(torch.device('cpu')):
        return torch.ops.dgc.fit(tensors)
    return fit_plainly(tensors)


def fit_plainly(tensors: Sequence[Tensor]) -> bool:
    """Compute ``fit``."""
    return all(
        each.dtype == torch.float32
        and each.device.type == 'cpu'
        and not each.is_sparse
        and each.is_contiguous()
        and is_aligned(each)
        for each in tensors
    )


def are_apart(tensors: Sequence[Tensor]) -> bool:
    """Return whether no two contiguous tensors overlap."""
    if ops.is_native(torch.device('cpu')):
        return torch.ops.dgc.apart(tensors)
    return are_apart_plainly(tensors)


def are_apart_plainly(tensors: Sequence[Tensor]) -> bool:
    """Compute ``are_apart``."""
    ranges = sorted((each.data_ptr(), each.nbytes) for each in tensors if each.numel())
    return all(begin + size <= after for (begin, size), (after, _) in pairwise(ranges))


def address(gradient: Tensor) -> int:
    """Return where the elements of a gradient lie; 0 for a sparse one."""
    return 0 if gradient.is_sparse else gradient.data_ptr()
