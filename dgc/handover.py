"""Steps in which the wrapped optimizer applies sparse means without dense gradients."""

from __future__ import annotations

from collections.abc import Container, Sequence

from torch.optim import Optimizer

from dgc import ops
from dgc.buckets import Bucket
from dgc.codec.indices import in_order
from dgc.ops.contract import Step, Target
from dgc.optim.targets import is_covered, target_of


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
    """Step ``optimizer`` on the results of all buckets.

    Sparse results that are still to be written are applied by a kernel, and ``.grad`` becomes a
    ``LazyGradient``. Where the kernel does not cover the optimizer, the parameters or the result,
    they are written to ``.grad`` first.

    Args:
        buckets: After ``publish``.
        optimizer: The wrapped one.
        own_hook: As in ``offer``.
        unused: Parameters that no rank used, which are left alone.
    """
    taken: list[tuple[Bucket, list[Target]]] = []
    covered = is_covered(optimizer, own_hook)
    for bucket in buckets:
        if bucket.mean is None:
            continue
        targets = targets_of(bucket, optimizer, unused) if covered else None
        if targets is None:
            bucket.write(unused)
        else:
            taken.append((bucket, targets))
    for bucket, _ in taken:
        for member in bucket.members:
            member.parameter.grad = None  # so that the optimizer passes it over
    optimizer.step()
    for bucket, targets in taken:
        assert bucket.mean is not None
        kernels = ops.kernels(bucket.device)
        kernels.apply(targets, bucket.mean.contributions, bucket.mean.factor)
        bucket.take_over(unused)


def targets_of(bucket: Bucket, optimizer: Optimizer, unused: Container[str]) -> list[Target] | None:
    """Return how ``optimizer`` updates each parameter; None where one of them is not covered."""
    assert bucket.mean is not None
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
    indices = [each.indices for each in bucket.mean.contributions if each.indices is not None]
    return targets if all(in_order(each, bucket.numel) for each in indices) else None
