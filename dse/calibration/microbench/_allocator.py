"""Keeping freed memory in the process.

The C library returns large blocks to the system when they are freed, so that every result of more
than 32 MiB is paid for by page faults: a tenth of the speed from one size on. Training processes
avoid that by an allocator that keeps its memory (jemalloc, tcmalloc: the usual advice for torch on
CPUs). Microbenchmarks do the same by the C library's own settings.
"""

from __future__ import annotations

import ctypes

#: Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, until it ends.

    Returns:
        Whether the C library took the settings; false where it is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # No block of its own for large requests, and no giving back from the end of the heap.
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
