"""Evaluating one configuration of a workload."""

from __future__ import annotations

from dse.search.evaluate._configurations import ConfigurationEvaluator, WorkloadContext
from dse.search.evaluate._evaluator import EvaluationContext, Evaluator
from dse.search.evaluate._objective import ObjectiveFunction

__all__ = [
    "ConfigurationEvaluator",
    "EvaluationContext",
    "Evaluator",
    "ObjectiveFunction",
    "WorkloadContext",
]
