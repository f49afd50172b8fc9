"""The performance model: from a configuration to iteration time, memory, cost and their spread."""

from __future__ import annotations

from dse.machine.kernels import EmbeddingKernels
from dse.workload._iteration import DurationClass
from dse.workload._launch import LaunchMode
from dse.workload._predict import PairedComparison
from dse.workload._prediction import MemoryAccount as RankMemory
from dse.workload._prediction import Prediction
from dse.workload.dlrm._api import predict, problem_of
from dse.workload.dlrm._durations import slot_durations_s
from dse.workload.dlrm._features import ExchangeGroup, exchange_group_of
from dse.workload.dlrm._job import (
    DlrmJob,
    compare_plans,
    predict_plan,
    sample_iteration_times_s,
)
from dse.workload.dlrm._layout import build_layout
from dse.workload.dlrm._problem import Problem
from dse.workload.dlrm._profiles import (
    SOFTWARE_PROFILES,
    FittedValue,
    SoftwareProfile,
    software_profile,
)
from dse.workload.dlrm._scorer import PlanScorer, PlanScores
from dse.workload.dlrm._slots import LayoutGraph, Slot
from dse.workload.dlrm._software import DenseBottom, InputPath, Software
from dse.workload.dlrm._types import Configuration

__all__ = [
    "SOFTWARE_PROFILES",
    "Configuration",
    "DenseBottom",
    "DlrmJob",
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
    "predict",
    "predict_plan",
    "problem_of",
    "sample_iteration_times_s",
    "slot_durations_s",
    "software_profile",
]
