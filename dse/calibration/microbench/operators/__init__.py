"""Benchmarks of operators: operands, calls, and the caches that a call finds."""

from __future__ import annotations

from dse.calibration.microbench.operators._dense import KERNELS, KernelFactory, make_kernel
from dse.calibration.microbench.operators._operands import ColdCaches, OtherTables, point_kernel

__all__ = [
    "KERNELS",
    "ColdCaches",
    "KernelFactory",
    "OtherTables",
    "make_kernel",
    "point_kernel",
]
