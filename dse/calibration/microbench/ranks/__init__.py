"""Local ranks: processes of this machine that measure collectives, or operators all at once."""

from __future__ import annotations

from dse.calibration.microbench.ranks._collectives import (
    LocalRanks,
    RefusedCollectiveError,
    collective_ranks,
)
from dse.calibration.microbench.ranks._concurrent import (
    ConcurrentRanks,
    RefusedKernelError,
    concurrent_ranks,
)

__all__ = [
    "ConcurrentRanks",
    "LocalRanks",
    "RefusedCollectiveError",
    "RefusedKernelError",
    "collective_ranks",
    "concurrent_ranks",
]
