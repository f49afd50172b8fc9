"""Benchmarks of operators: operands, calls, and the caches that a call finds."""

from __future__ import annotations

from dse.calibration.microbench.operators._dense import make_kernel

__all__ = [
    "make_kernel",
]
