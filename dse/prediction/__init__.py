"""The performance model: from a configuration to iteration time, memory, cost and their spread."""

from __future__ import annotations

from dse.prediction._api import predict, problem_of
from dse.prediction._durations import slot_durations_s
from dse.prediction._features import ExchangeGroup
from dse.prediction._layout import DurationClass, LayoutGraph, Slot, build_layout
from dse.prediction._predict import predict_plan, sample_iteration_times_s
from dse.prediction._problem import Problem
from dse.prediction._scorer import PlanScorer, PlanScores
from dse.prediction._types import Configuration, LaunchMode, Prediction, RankMemory, Software

__all__ = [
    "Configuration",
    "DurationClass",
    "ExchangeGroup",
    "LaunchMode",
    "LayoutGraph",
    "PlanScorer",
    "PlanScores",
    "Prediction",
    "Problem",
    "RankMemory",
    "Slot",
    "Software",
    "build_layout",
    "predict",
    "predict_plan",
    "problem_of",
    "sample_iteration_times_s",
    "slot_durations_s",
]
