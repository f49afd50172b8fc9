"""The performance model: from a configuration to iteration time, memory, cost and their spread."""

from __future__ import annotations

from dse.kernels import EmbeddingKernels
from dse.prediction._api import predict, problem_of
from dse.prediction._durations import slot_durations_s
from dse.prediction._explain import (
    PairedComparison,
    compare_plans,
    explain,
    explain_plan,
)
from dse.prediction._explain_details import task_details
from dse.prediction._features import ExchangeGroup, exchange_group_of
from dse.prediction._layout import build_layout
from dse.prediction._predict import predict_plan, sample_iteration_times_s
from dse.prediction._problem import Problem
from dse.prediction._profiles import (
    SOFTWARE_PROFILES,
    FittedValue,
    SoftwareProfile,
    software_profile,
)
from dse.prediction._scorer import PlanScorer, PlanScores
from dse.prediction._slots import DurationClass, LayoutGraph, Slot
from dse.prediction._software import DenseBottom, InputPath, LaunchMode, Software
from dse.prediction._types import Configuration, Prediction, RankMemory

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
