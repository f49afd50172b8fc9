"""Search: studies, samplers, executors, resume."""

from __future__ import annotations

from dse.search._conclusion import ReasonGroup, change_words, group_reasons
from dse.search._evaluate import EvaluationContext, Evaluator
from dse.search._evaluate_model import ModelContext, ModelEvaluator
from dse.search._evaluate_step import StepContext, StepEvaluator
from dse.search._executors import Executor, ProcessExecutor, SerialExecutor
from dse.search._inputs import StudyInputs, read_inputs
from dse.search._load import (
    load_study,
    stored_model,
    stored_platform,
    stored_steps,
    stored_transformer,
)
from dse.search._pareto import pareto_mask
from dse.search._ray_executor import RayExecutor
from dse.search._records import (
    Fact,
    InputFile,
    StudyResult,
    TrialRecord,
    TrialStatus,
    metric_values,
)
from dse.search._run import RunOptions, Study, mark_front, run
from dse.search._trace_types import ChangeEffect, StudyTrace, TracePrediction, TraceRank
from dse.search._validation import (
    Agreement,
    PlatformFactor,
    ValidatedCandidate,
    Validation,
    ValidationMode,
    ValidationSetting,
    validation_to_json,
)
from dse.space import Objective, ParameterValue

__all__ = [
    "Agreement",
    "ChangeEffect",
    "EvaluationContext",
    "Evaluator",
    "Executor",
    "Fact",
    "InputFile",
    "ModelContext",
    "ModelEvaluator",
    "Objective",
    "ParameterValue",
    "PlatformFactor",
    "ProcessExecutor",
    "RayExecutor",
    "ReasonGroup",
    "RunOptions",
    "SerialExecutor",
    "StepContext",
    "StepEvaluator",
    "Study",
    "StudyInputs",
    "StudyResult",
    "StudyTrace",
    "TracePrediction",
    "TraceRank",
    "TrialRecord",
    "TrialStatus",
    "ValidatedCandidate",
    "Validation",
    "ValidationMode",
    "ValidationSetting",
    "change_words",
    "group_reasons",
    "load_study",
    "mark_front",
    "metric_values",
    "pareto_mask",
    "read_inputs",
    "run",
    "stored_model",
    "stored_platform",
    "stored_steps",
    "stored_transformer",
    "validation_to_json",
]
