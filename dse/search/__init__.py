"""Search: studies, samplers, executors, resume."""

from __future__ import annotations

from dse.search._evaluate import EvaluationContext
from dse.search._evaluate import Evaluator
from dse.search._evaluate import metric_values
from dse.search._executors import Executor
from dse.search._executors import ProcessExecutor
from dse.search._executors import SerialExecutor
from dse.search._load import load_study
from dse.search._load import stored_model
from dse.search._load import stored_platform
from dse.search._pareto import pareto_mask
from dse.search._records import Fact
from dse.search._records import InputFile
from dse.search._records import StudyResult
from dse.search._records import TrialRecord
from dse.search._records import TrialStatus
from dse.search._run import RunOptions
from dse.search._run import Study
from dse.search._run import mark_front
from dse.search._run import run
from dse.space import Objective
from dse.space import ParameterValue

__all__ = [
    "EvaluationContext",
    "Evaluator",
    "Executor",
    "Fact",
    "InputFile",
    "Objective",
    "ParameterValue",
    "ProcessExecutor",
    "RunOptions",
    "SerialExecutor",
    "Study",
    "StudyResult",
    "TrialRecord",
    "TrialStatus",
    "load_study",
    "mark_front",
    "metric_values",
    "pareto_mask",
    "run",
    "stored_model",
    "stored_platform",
]
