"""How this process's memory is allocated."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
MOST = 2**31 - 1  # that an int holds: 2 GiB
MAPPED = (MOST, 2**25)  # the second is the most that older versions take


def keep_freed_memory() -> bool:
    """Keep what is freed for what is allocated next; returns whether that can be set here.

    glibc hands large blocks back to the kernel as soon as they are free, which zeroes them and maps
    them page by page when the next step asks for them: an eighth of a step of VGG-16 on a CPU. The
    process keeps the most memory that it ever had.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    # In this order: any setting ends glibc's own adapting, without which small blocks are mapped.
    mapped = any(mallopt(M_MMAP_THRESHOLD, size) == 1 for size in MAPPED)
    return mapped and mallopt(M_TRIM_THRESHOLD, MOST) == 1
