"""Garbage collection in processes of our own."""

from __future__ import annotations

import gc

#: Allocations between two collections. Evaluations leave few cycles behind but allocate many
#: objects that last, so the interpreter's own threshold costs 6 % of their time for nothing.
_COLLECTION_THRESHOLD = 100_000


def collect_rarely() -> None:
    """Makes garbage collection rare; for workers and commands, never in a caller's process."""
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD, 50, 50)
