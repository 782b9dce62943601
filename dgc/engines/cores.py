"""How many CPU cores this process may use: its affinity, and the quota of its container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def available_cores() -> float:
    """Return the number of cores that this process may keep busy, such as 1.5; above 0."""
    has_affinity = hasattr(os, 'sched_getaffinity')  # not on macOS
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(float(cores), quota())


def quota(cgroups: Path = Path('/sys/fs/cgroup'), own: Path = Path('/proc/self/cgroup')) -> float:
    """Return the number of cores that the control groups of this process allow; inf for no limit.

    Docker's ``--cpus`` and Kubernetes' CPU limits set it. It is the least quota of the process's
    group and the groups above it.

    Args:
        cgroups: Where the control groups are mounted, version 1 or 2.
        own: The file that lists the groups of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return float('inf')
    limits = [float('inf')]
    for line in lines:
        if line.count(':') < 2:
            continue
        _, controllers, path = line.split(':', 2)
        if not controllers:
            limits += (_quota_v2(folder) for folder in _upwards(cgroups, path))
        elif 'cpu' in controllers.split(','):
            for mount in (cgroups / controllers, cgroups / 'cpu'):
                limits += (_quota_v1(folder) for folder in _upwards(mount, path))
    return min(limits)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield the folder of a group and those above it, down to that of the mount itself.

    Within a container the path may be the host's, of which only the mount's own folder is there.
    """
    parts = [part for part in PurePosixPath(path).parts if part not in ('/', '..')]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _quota_v2(folder: Path) -> float:
    """Return the quota in ``cpu.max``, such as ``150000 100000``, in cores."""
    try:
        limit, period = (folder / 'cpu.max').read_text().split()
        return float('inf') if limit == 'max' else _cores(int(limit), int(period))
    except (OSError, ValueError):
        return float('inf')


def _quota_v1(folder: Path) -> float:
    """Return the quota in ``cpu.cfs_quota_us``, which is -1 for none, in cores."""
    try:
        limit = int((folder / 'cpu.cfs_quota_us').read_text())
        return _cores(limit, int((folder / 'cpu.cfs_period_us').read_text()))
    except (OSError, ValueError):
        return float('inf')


def _cores(limit: int, period: int) -> float:
    return limit / period if limit > 0 and period > 0 else float('inf')
