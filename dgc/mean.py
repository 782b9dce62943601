"""The mean of sparse messages, and a gradient that is computed from it when something reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dgc import ops
from dgc.sparse import Sparse


class SparseMean:
    """``factor · Σ contributions``, of a bucket's float32 ``[n]``.

    Args:
        contributions: Sparse messages, added in their order.
        factor: Such as 1 / world size.
    """

    def __init__(self, contributions: Sequence[Sparse], factor: float) -> None:
        self.contributions = contributions
        self.factor = factor
        self._dense: Tensor | None = None

    def spread(self, pieces: Sequence[Tensor]) -> None:
        """Write it to flat tensors whose concatenation is ``[n]``."""
        ops.kernels(pieces[0].device).spread(pieces, self.contributions, self.factor)

    @property
    def is_finite(self) -> bool:
        """Whether every element is."""
        parts = [each for each in self.contributions if len(each.values)]
        if not parts:
            return True
        merged = merge_scaled(parts, self.factor)
        return ops.kernels(merged.device).finite([merged])

    @property
    def dense(self) -> Tensor:
        """All of it, float32 ``[n]``; computed once."""
        if self._dense is None:
            first = self.contributions[0]
            flat = torch.empty(first.numel, dtype=torch.float32, device=first.values.device)
            self.spread([flat])
            self._dense = flat
        return self._dense


def merge_scaled(parts: Sequence[Sparse], factor: float) -> Tensor:
    """Return the non-zero elements of ``factor · Σ parts``, float32."""
    indices = torch.cat([part.indices for part in parts if part.indices is not None])
    places, inverse = torch.unique(indices, return_inverse=True)
    values = torch.zeros(len(places), dtype=torch.float32, device=indices.device)
    for part, at in zip(parts, inverse.split([len(p.values) for p in parts]), strict=True):
        values.index_add_(0, at, part.values, alpha=factor)
    return values


class LazyGradient(Tensor):
    """One parameter's part of a ``SparseMean``, as ``.grad`` after a step that did not need it.

    It has the shape, type and device of the parameter, and no storage: whatever reads or writes it
    meets a dense tensor, which is computed at the first use.
    """

    _part: tuple[SparseMean, int, torch.Size]  # the mean, and where and in what shape it lies there
    _dense: Tensor | None = None

    @staticmethod
    def of(mean: SparseMean, offset: int, parameter: Tensor) -> LazyGradient:
        """Return the part of ``mean`` that begins at ``offset``, in the shape of ``parameter``."""
        made: LazyGradient = Tensor._make_wrapper_subclass(
            LazyGradient, parameter.shape, dtype=torch.float32, device=parameter.device
        )
        made._part = mean, offset, parameter.shape
        # Code in C that asks for its address gets an error then, and not a null pointer.
        torch._C._set_throw_on_mutable_data_ptr(made)
        return made

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call what Python code calls, with the dense tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return function(*materialized(args), **materialized(dict(kwargs or {})))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call what autograd calls, with the dense tensor: it adds a further gradient in place."""
        return function(*materialized(args), **materialized(dict(kwargs or {})))


def materialized(tree: Any) -> Any:
    """Return nested lists, tuples and dictionaries with dense tensors for lazy ones."""
    return tree_map_only(LazyGradient, dense, tree)


def dense(gradient: Tensor) -> Tensor:
    """Return the dense tensor behind a gradient that may be lazy; always the same one."""
    if type(gradient) is not LazyGradient:
        return gradient
    if gradient._dense is None:
        mean, begin, shape = gradient._part
        with torch.inference_mode(False):  # the first reader may be a metric, and a later one write
            part = mean.dense[begin : begin + shape.numel()].view(shape)
            gradient._dense = part.data  # no view to autograd, with a version of its own
    return gradient._dense
