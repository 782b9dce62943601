"""A setting of glibc's memory allocation."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
MAX_INT = 2**31 - 1  # bytes
MMAP_THRESHOLDS = (MAX_INT, 2**25)  # older versions refuse more than the second


def keep_freed_memory() -> bool:
    """Reuse freed memory for later allocations; returns whether glibc could be set to do so.

    By default glibc returns large freed blocks to the kernel, which zeroes and maps them again,
    page by page, in the next step: an eighth of a step of VGG-16 on a CPU. With this setting the
    process never returns memory.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    # In this order: any setting ends glibc's own adaptation of the thresholds, so a success of the
    # second call alone would leave even small blocks to be mapped anew each time.
    mapped = any(mallopt(M_MMAP_THRESHOLD, size) == 1 for size in MMAP_THRESHOLDS)
    return mapped and mallopt(M_TRIM_THRESHOLD, MAX_INT) == 1
