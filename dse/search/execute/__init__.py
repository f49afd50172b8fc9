"""Executing evaluations: in this process, in worker processes, or on Ray."""

from __future__ import annotations

from dse.search.execute._executor import (
    Executor,
    SerialExecutor,
    check_executor,
    make_executor,
    useful_jobs,
)
from dse.search.execute._failures import FailureWatch, failures_text
from dse.search.execute._process import ProcessExecutor
from dse.search.execute._ray import RayExecutor

__all__ = [
    "Executor",
    "FailureWatch",
    "ProcessExecutor",
    "RayExecutor",
    "SerialExecutor",
    "check_executor",
    "failures_text",
    "make_executor",
    "useful_jobs",
]
