"""Search: studies, samplers, executors, resume."""

from __future__ import annotations

from dse.search._conclusion import ReasonGroup, group_reasons
from dse.search._evaluate import EvaluationContext, Evaluator, metric_values
from dse.search._executors import Executor, ProcessExecutor, SerialExecutor
from dse.search._load import load_study, stored_model, stored_platform
from dse.search._pareto import pareto_mask
from dse.search._records import Fact, InputFile, StudyResult, TrialRecord, TrialStatus
from dse.search._run import RunOptions, Study, mark_front, run
from dse.space import Objective, ParameterValue

__all__ = [
    "EvaluationContext",
    "Evaluator",
    "Executor",
    "Fact",
    "InputFile",
    "Objective",
    "ParameterValue",
    "ProcessExecutor",
    "ReasonGroup",
    "RunOptions",
    "SerialExecutor",
    "Study",
    "StudyResult",
    "TrialRecord",
    "TrialStatus",
    "group_reasons",
    "load_study",
    "mark_front",
    "metric_values",
    "pareto_mask",
    "run",
    "stored_model",
    "stored_platform",
]
