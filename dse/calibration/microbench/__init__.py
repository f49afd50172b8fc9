"""Microbenchmarks of the machine at hand: operators, host overheads and collectives.

:func:`make_plan` says what is measured and in which order, :func:`run_session` measures it within
a budget of time and keeps a log that can be continued. Nothing here fits anything.
"""

from __future__ import annotations

from dse.calibration.microbench._allocator import keep_freed_memory
from dse.calibration.microbench._busy import BusyRanks, RefusedKernelError, busy_ranks
from dse.calibration.microbench._collectives import (
    LocalRanks,
    RefusedCollectiveError,
    collective_ranks,
)
from dse.calibration.microbench._design import (
    COLLECTIVES,
    PLAN_VERSION,
    MeasurementPlan,
    default_local_ranks,
    default_threads,
    make_plan,
)
from dse.calibration.microbench._host import measure_host
from dse.calibration.microbench._kernels import KernelFactory, make_kernel
from dse.calibration.microbench._log import SCHEMA_VERSION, SessionResult, read_session
from dse.calibration.microbench._machine import available_cores, describe_machine
from dse.calibration.microbench._measurer import Measurer, TorchMeasurer, torch_measurer
from dse.calibration.microbench._operators import (
    CPU_LIMITS,
    CUDA_LIMITS,
    OPERATORS,
    Axis,
    Limits,
    OperatorSpec,
    Work,
)
from dse.calibration.microbench._session import Progress, run_session
from dse.calibration.microbench._timing import (
    CpuTimer,
    CudaTimer,
    MeasureSettings,
    Timer,
    measure,
    summarise,
)
from dse.calibration.microbench._types import (
    CollectiveMeasurement,
    CollectivePoint,
    HostMeasurement,
    KernelMeasurement,
    KernelPoint,
    MachineInfo,
    Purpose,
    Sample,
    Sizes,
    SkippedPoint,
)

__all__ = [
    "COLLECTIVES",
    "CPU_LIMITS",
    "CUDA_LIMITS",
    "OPERATORS",
    "PLAN_VERSION",
    "SCHEMA_VERSION",
    "Axis",
    "BusyRanks",
    "CollectiveMeasurement",
    "CollectivePoint",
    "CpuTimer",
    "CudaTimer",
    "HostMeasurement",
    "KernelFactory",
    "KernelMeasurement",
    "KernelPoint",
    "Limits",
    "LocalRanks",
    "MachineInfo",
    "MeasureSettings",
    "MeasurementPlan",
    "Measurer",
    "OperatorSpec",
    "Progress",
    "Purpose",
    "RefusedCollectiveError",
    "RefusedKernelError",
    "Sample",
    "SessionResult",
    "Sizes",
    "SkippedPoint",
    "Timer",
    "TorchMeasurer",
    "Work",
    "available_cores",
    "busy_ranks",
    "collective_ranks",
    "default_local_ranks",
    "default_threads",
    "describe_machine",
    "keep_freed_memory",
    "make_kernel",
    "make_plan",
    "measure",
    "measure_host",
    "read_session",
    "run_session",
    "summarise",
    "torch_measurer",
]
