"""Microbenchmarks of this machine: operators, host overheads and collectives.

:func:`make_plan` decides what is measured and in which order, :func:`run_session` measures it
within a time budget and keeps a log that later sessions continue. Nothing is fitted here.
Subpackages: :mod:`~dse.calibration.microbench.plan`,
:mod:`~dse.calibration.microbench.operators`, :mod:`~dse.calibration.microbench.timing`,
:mod:`~dse.calibration.microbench.ranks` and :mod:`~dse.calibration.microbench.log`.
"""

from __future__ import annotations

from dse.calibration.microbench._machine import (
    describe_machine,
    keep_freed_memory,
)
from dse.calibration.microbench._measurer import torch_measurer
from dse.calibration.microbench._session import Progress, run_session
from dse.calibration.microbench.log import SessionResult, read_session
from dse.calibration.microbench.plan import (
    OPERATORS,
    PLAN_VERSION,
    CollectiveMeasurement,
    HostMeasurement,
    KernelMeasurement,
    MachineInfo,
    MeasurementPlan,
    Purpose,
    default_local_ranks,
    default_threads,
    make_plan,
)
from dse.calibration.microbench.timing import MeasureSettings

__all__ = [
    "OPERATORS",
    "PLAN_VERSION",
    "CollectiveMeasurement",
    "HostMeasurement",
    "KernelMeasurement",
    "MachineInfo",
    "MeasureSettings",
    "MeasurementPlan",
    "Progress",
    "Purpose",
    "SessionResult",
    "default_local_ranks",
    "default_threads",
    "describe_machine",
    "keep_freed_memory",
    "make_plan",
    "read_session",
    "run_session",
    "torch_measurer",
]
