"""Steps in which the wrapped optimizer applies sparse means without dense gradients."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import pairwise

from torch import Tensor
from torch.optim import Optimizer

from dgc import ops
from dgc.buckets import Bucket
from dgc.codec.indices import in_order
from dgc.ops import native
from dgc.ops.contract import Step, Target
from dgc.optim.targets import is_covered, is_plain, target_of


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
    gradients = {}
    for bucket, _ in taken:
        for member in bucket.members:  # the optimizer passes them over
            gradients[member.parameter], member.parameter.grad = member.parameter.grad, None
    try:
        optimizer.step()
    except BaseException:  # a program may catch it, and step again
        for bucket, _ in taken:
            for member in bucket.members:
                member.parameter.grad = gradients[member.parameter]
            if bucket.mean is not None:
                bucket.write(unused)
        raise
    for bucket, targets in taken:
        if bucket.mean is None:
            native.apply(targets, [], gradient=bucket.shown)
            for member in bucket.members:
                member.parameter.grad = gradients[member.parameter]
        else:
            native.apply(targets, bucket.mean.contributions, bucket.mean.factor)
            bucket.take_over(unused)


def targets_of(bucket: Bucket, optimizer: Optimizer, unused: Container[str]) -> list[Target] | None:
    """Return how ``optimizer`` updates each parameter; None where one of them, or the form of the
    result, is not covered."""
    if bucket.mean is None and bucket.shown is None:
        return None
    targets = []
    for member in bucket.members:
        parameter = member.parameter
        if member.name in unused:
            targets.append(Target(parameter, Step.NONE))
            continue
        if parameter.grad is not None and parameter.grad.is_sparse:  # torch steps otherwise then
            return None
        target = target_of(optimizer, parameter, member.group)
        if target is None:
            return None
        targets.append(target)
    parts = [] if bucket.mean is None else bucket.mean.contributions
    indices = [each.indices for each in parts if each.indices is not None]
    return targets if all(in_order(each, bucket.numel) for each in indices) else None


def are_apart(parameters: Sequence[Tensor]) -> bool:
    """Return whether no two contiguous tensors overlap. An optimizer updates such ones in its own
    order, and the kernel in that of buckets, by several threads."""
    ranges = sorted((each.data_ptr(), each.nbytes) for each in parameters if each.numel())
    return all(begin + size <= after for (begin, size), (after, _) in pairwise(ranges))
