"""Timers: samples of one call until its time is known well enough, and host overheads."""

from __future__ import annotations

from dse.calibration.microbench.timing._host import measure_host
from dse.calibration.microbench.timing._timers import (
    CpuTimer,
    CudaTimer,
    MeasureSettings,
    measure,
    summarise,
)

__all__ = [
    "CpuTimer",
    "CudaTimer",
    "MeasureSettings",
    "measure",
    "measure_host",
    "summarise",
]
