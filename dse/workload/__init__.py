"""Workloads: what one training step computes, exchanges and stores, for each kind of model.

A :class:`Job` is a workload on a machine under one choice of parameters. Its graph, its memory and
its checks belong to the kind of workload; prediction, uncertainty and comparison are here, once
for all kinds.
"""

from __future__ import annotations

from dse.workload._explain import AttributedGraph, Details, explain_job, task_details
from dse.workload._iteration import DurationClass, ErrorSource, Iteration
from dse.workload._job import Job
from dse.workload._launch import LaunchMode
from dse.workload._predict import PairedComparison, compare_jobs, predict_job
from dse.workload._prediction import MemoryAccount, Prediction

__all__ = [
    "AttributedGraph",
    "Details",
    "DurationClass",
    "ErrorSource",
    "Iteration",
    "Job",
    "LaunchMode",
    "MemoryAccount",
    "PairedComparison",
    "Prediction",
    "compare_jobs",
    "explain_job",
    "predict_job",
    "task_details",
]
