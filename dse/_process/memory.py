"""Memory of processes: when garbage is collected, and what is kept for the next use."""

from __future__ import annotations

from functools import cache
import gc

#: Allocations between two collections. Evaluations leave few cycles behind but allocate many
#: objects that last, so the interpreter's own threshold costs 6 % of their time for nothing.
_COLLECTION_THRESHOLD = 100_000

#: A little less than the largest block by which glibc raises its limits (32 MiB).
_LARGEST_BLOCK_BYTES = 31 * 2**20


def collect_rarely() -> None:
    """Makes garbage collection rare; for workers and commands, never in a caller's process."""
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD, 50, 50)


@cache
def keep_freed_memory() -> None:
    """Lets arrays of up to 31 MiB be freed and allocated again without the operating system.

    Of what is freed, glibc keeps up to twice the size of the largest block that was ever freed. It
    returns the rest, and asks for new pages the next time, each of which costs a page fault. Until
    a large block happens to be freed, batches of plans are scored at 60 % of the speed. So one is
    freed here, without ever being written to; see `M_MMAP_THRESHOLD` in mallopt(3). Other
    allocators are not affected.
    """
    bytearray(_LARGEST_BLOCK_BYTES)
