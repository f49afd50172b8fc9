"""Workloads: what one training step computes, exchanges and stores, for each kind of model.

A :class:`Workload` is what is trained and what may be chosen for it; a :class:`Job` is a workload
on a machine under one choice of parameters. Graph, memory and checks belong to the kind of
workload; prediction, uncertainty, comparison and explanation are here, once for all kinds.
"""

from __future__ import annotations

from dse.workload._builder import StepBuilder
from dse.workload._configuration import Configuration
from dse.workload._explain import AttributedGraph, Details, explain_job, task_details
from dse.workload._iteration import (
    DurationClass,
    ErrorSource,
    Iteration,
    SimulatedStep,
)
from dse.workload._job import Job, PlanEffort
from dse.workload._launch import LaunchMode
from dse.workload._metrics import (
    COMMON_METRICS,
    COST,
    MEMORY_HEADROOM,
    PREDICTED_FIGURES,
    PRICE_FIGURES,
    SAMPLE_FIGURES,
    Figures,
    Metric,
    metrics_with,
)
from dse.workload._parameters import (
    Counts,
    Name,
    Names,
    Parameter,
    ParametersBlock,
    ParameterValue,
    Platforms,
    Precisions,
    RankCounts,
    Switches,
    named,
)
from dse.workload._predict import PairedComparison, compare_jobs, predict_job
from dse.workload._prediction import Effect, MemoryAccount, Prediction, fit_probability
from dse.workload._programs import (
    BOUND_LABEL,
    IDEAL,
    FittedValue,
    Program,
    find_program,
    program_label,
)
from dse.workload._registry import (
    load_workload,
    workload_from_text,
    workload_kind,
    workload_kinds,
)
from dse.workload._workload import PLACEMENT_PREFIX, Workload

__all__ = [
    "BOUND_LABEL",
    "COMMON_METRICS",
    "COST",
    "IDEAL",
    "MEMORY_HEADROOM",
    "PLACEMENT_PREFIX",
    "PREDICTED_FIGURES",
    "PRICE_FIGURES",
    "SAMPLE_FIGURES",
    "AttributedGraph",
    "Configuration",
    "Counts",
    "Details",
    "DurationClass",
    "Effect",
    "ErrorSource",
    "Figures",
    "FittedValue",
    "Iteration",
    "Job",
    "LaunchMode",
    "MemoryAccount",
    "Metric",
    "Name",
    "Names",
    "PairedComparison",
    "Parameter",
    "ParameterValue",
    "ParametersBlock",
    "PlanEffort",
    "Platforms",
    "Precisions",
    "Prediction",
    "Program",
    "RankCounts",
    "SimulatedStep",
    "StepBuilder",
    "Switches",
    "Workload",
    "compare_jobs",
    "explain_job",
    "find_program",
    "fit_probability",
    "load_workload",
    "metrics_with",
    "named",
    "predict_job",
    "program_label",
    "task_details",
    "workload_from_text",
    "workload_kind",
    "workload_kinds",
]
