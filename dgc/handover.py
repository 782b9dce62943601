"""Steps in which the wrapped optimizer applies sparse means without dense gradients."""

from __future__ import annotations

from collections.abc import Container, Sequence

from torch import Tensor
from torch.optim import Optimizer

from dgc import ops
from dgc.buckets import Bucket
from dgc.codec.indices import in_order
from dgc.ops import native
from dgc.ops.contract import Target
from dgc.ops.gradients import are_apart
from dgc.optim.targets import is_covered, is_plain
from dgc.optim.targets import targets_of as targets_for


def offer(buckets: Sequence[Bucket], optimizer: Optimizer, own_hook: int) -> None:
    """Note in buckets whether their sparse results are kept for ``optimizer`` to apply.

    Args:
        buckets: Of the step that begins.
        optimizer: The wrapped one.
        own_hook: Of the hooks before its steps, the one that does not matter.
    """
    covered = is_covered(optimizer, own_hook)
    for bucket in buckets:
        bucket.hands_over = covered and ops.is_native(bucket.device)


def step(
    buckets: Sequence[Bucket], optimizer: Optimizer, own_hook: int, unused: Container[str]
) -> None:
    """Step ``optimizer`` on the results of all buckets, right after they were published.

    A kernel applies the result of a bucket to all of its parameters at once. ``.grad`` becomes a
    ``LazyGradient`` where the result is sparse. Where the kernel does not cover the optimizer, the
    parameters or the result, that is written to ``.grad``, and ``optimizer`` steps on it.

    Args:
        buckets: After ``publish``.
        optimizer: The wrapped one.
        own_hook: As in ``offer``.
        unused: Parameters that no rank used, which are left alone.
    """
    taken: list[tuple[Bucket, list[Target]]] = []
    covered = is_covered(optimizer, own_hook) and all(map(is_plain, optimizer.param_groups))
    covered = covered and are_apart([m.parameter for each in buckets for m in each.members])
    for bucket in buckets:
        targets = None
        if covered and bucket.hands_over and ops.is_native(bucket.device):
            targets = targets_of(bucket, optimizer, unused)
        if targets is not None:
            taken.append((bucket, targets))
        elif bucket.mean is not None:
            bucket.write(unused)
    hidden = [target.parameter for _, targets in taken for target in targets]
    gradients = [parameter.grad for parameter in hidden]
    for parameter in hidden:  # the optimizer passes them over
        parameter.grad = None
    try:
        optimizer.step()
    except BaseException:  # a program may catch it, and step again
        put_back(hidden, gradients)
        for bucket, _ in taken:
            if bucket.mean is not None:
                bucket.write(unused)
        raise
    put_back(hidden, gradients)
    for bucket, targets in taken:
        if bucket.mean is None:
            native.apply(targets, [], gradient=bucket.shown)
        else:
            native.apply(targets, bucket.mean.contributions, bucket.mean.factor)
            bucket.take_over(unused)


def put_back(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Set every ``.grad`` to what it was."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def targets_of(bucket: Bucket, optimizer: Optimizer, unused: Container[str]) -> list[Target] | None:
    """Return how ``optimizer`` updates each parameter; None where one of them, or the form of the
    result, is not covered."""
    if bucket.mean is None and bucket.shown is None:
        return None
    if bucket.sparse_dims:  # torch steps otherwise then
        return None
    members = bucket.members
    pairs = [(m.parameter, None if m.name in unused else m.group) for m in members]
    found = targets_for(optimizer, pairs)
    parts = [] if bucket.mean is None else bucket.mean.contributions
    indices = [each.indices for each in parts if each.indices is not None]
    return found if all(in_order(each, bucket.numel) for each in indices) else None
