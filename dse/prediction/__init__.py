"""The performance model: from a configuration to iteration time, memory, cost and their spread."""

from __future__ import annotations

from dse.prediction._api import predict, problem_of
from dse.prediction._predict import predict_plan, sample_iteration_times_s
from dse.prediction._problem import Problem
from dse.prediction._scorer import PlanScorer, PlanScores
from dse.prediction._types import Configuration, LaunchMode, Prediction, RankMemory, Software

__all__ = [
    "Configuration",
    "LaunchMode",
    "PlanScorer",
    "PlanScores",
    "Prediction",
    "Problem",
    "RankMemory",
    "Software",
    "predict",
    "predict_plan",
    "problem_of",
    "sample_iteration_times_s",
]
