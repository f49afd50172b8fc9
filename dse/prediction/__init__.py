"""The performance model: from a configuration to iteration time, memory, cost and their spread."""

from __future__ import annotations

from dse.prediction._api import predict
from dse.prediction._api import problem_of
from dse.prediction._predict import predict_plan
from dse.prediction._predict import sample_iteration_times_s
from dse.prediction._problem import Problem
from dse.prediction._scorer import PlanScorer
from dse.prediction._scorer import PlanScores
from dse.prediction._types import Configuration
from dse.prediction._types import LaunchMode
from dse.prediction._types import Prediction
from dse.prediction._types import RankMemory
from dse.prediction._types import Software

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
