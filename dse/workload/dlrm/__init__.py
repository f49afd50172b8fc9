"""The performance model: from a configuration to iteration time, memory, cost and their spread."""

from __future__ import annotations

from dse.machine.kernels import EmbeddingKernels
from dse.workload.dlrm._api import predict, problem_of
from dse.workload.dlrm._durations import slot_durations_s
from dse.workload.dlrm._explain import (
    PairedComparison,
    compare_plans,
    explain,
    explain_plan,
)
from dse.workload.dlrm._explain_details import task_details
from dse.workload.dlrm._features import ExchangeGroup, exchange_group_of
from dse.workload.dlrm._layout import build_layout
from dse.workload.dlrm._predict import predict_plan, sample_iteration_times_s
from dse.workload.dlrm._problem import Problem
from dse.workload.dlrm._profiles import (
    SOFTWARE_PROFILES,
    FittedValue,
    SoftwareProfile,
    software_profile,
)
from dse.workload.dlrm._scorer import PlanScorer, PlanScores
from dse.workload.dlrm._slots import DurationClass, LayoutGraph, Slot
from dse.workload.dlrm._software import DenseBottom, InputPath, LaunchMode, Software
from dse.workload.dlrm._types import Configuration, Prediction, RankMemory

__all__ = [
    "SOFTWARE_PROFILES",
    "Configuration",
    "DenseBottom",
    "DurationClass",
    "EmbeddingKernels",
    "ExchangeGroup",
    "FittedValue",
    "InputPath",
    "LaunchMode",
    "LayoutGraph",
    "PairedComparison",
    "PlanScorer",
    "PlanScores",
    "Prediction",
    "Problem",
    "RankMemory",
    "Slot",
    "Software",
    "SoftwareProfile",
    "build_layout",
    "compare_plans",
    "exchange_group_of",
    "explain",
    "explain_plan",
    "predict",
    "predict_plan",
    "problem_of",
    "sample_iteration_times_s",
    "slot_durations_s",
    "software_profile",
    "task_details",
]
