"""Search: studies, samplers, executors, resume."""

from __future__ import annotations

from dse.search._compare_inputs import InputDifference
from dse.search._compare_studies import (
    CommonCandidate,
    StudyComparison,
    compare_studies,
    metric_words,
)
from dse.search._header import StorageNote
from dse.search._inputs import StudyInputs, read_inputs
from dse.search._load import (
    load_study,
    stored_model,
    stored_platform,
    stored_steps,
    stored_transformer,
)
from dse.search._options import RunOptions, Study
from dse.search._records import (
    Fact,
    InputFile,
    StudyResult,
    TrialRecord,
    TrialStatus,
    metric_values,
)
from dse.search._rescore import rescore
from dse.search._rescore_changes import Amount, Change, KnownNames, parse_changes
from dse.search._rescore_inputs import stored_changes
from dse.search._rescore_platforms import ChangedFigure, PriceChoice, changed_platform
from dse.search._rescore_predict import StoredPlans, stored_plans
from dse.search._rescore_result import Rescored, RescoreProgress
from dse.search._rescore_write import write_rescored
from dse.search._result import mark_front
from dse.search._run import run
from dse.search._validation import (
    CalibrationFactor,
    RankingMetrics,
    ValidatedCandidate,
    Validation,
    ValidationMode,
    ValidationSetting,
    validation_to_json,
)
from dse.search.analyse._conclusion import ReasonGroup, change_words, group_reasons, knee_index
from dse.search.analyse._front_moves import BestMove, FrontMove, best_moves, front_moves
from dse.search.analyse._hypervolume import hypervolume
from dse.search.analyse._pareto import pareto_mask
from dse.search.analyse._sensitivity import (
    SENSITIVITY_INPUTS,
    SensitivityBar,
    SensitivityInput,
    sensitivity,
)
from dse.search.evaluate._base import EvaluationContext, Evaluator
from dse.search.evaluate._dlrm import ModelContext, ModelEvaluator
from dse.search.evaluate._trace_types import ChangeEffect, StudyTrace, TracePrediction, TraceRank
from dse.search.evaluate._transformer import StepContext, StepEvaluator
from dse.search.execute import Executor, ProcessExecutor, RayExecutor, SerialExecutor
from dse.search.space import Objective, ParameterValue

__all__ = [
    "SENSITIVITY_INPUTS",
    "Amount",
    "BestMove",
    "CalibrationFactor",
    "Change",
    "ChangeEffect",
    "ChangedFigure",
    "CommonCandidate",
    "EvaluationContext",
    "Evaluator",
    "Executor",
    "Fact",
    "FrontMove",
    "InputDifference",
    "InputFile",
    "KnownNames",
    "ModelContext",
    "ModelEvaluator",
    "Objective",
    "ParameterValue",
    "PriceChoice",
    "ProcessExecutor",
    "RankingMetrics",
    "RayExecutor",
    "ReasonGroup",
    "RescoreProgress",
    "Rescored",
    "RunOptions",
    "SensitivityBar",
    "SensitivityInput",
    "SerialExecutor",
    "StepContext",
    "StepEvaluator",
    "StorageNote",
    "StoredPlans",
    "Study",
    "StudyComparison",
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
    "best_moves",
    "change_words",
    "changed_platform",
    "compare_studies",
    "front_moves",
    "group_reasons",
    "hypervolume",
    "knee_index",
    "load_study",
    "mark_front",
    "metric_values",
    "metric_words",
    "pareto_mask",
    "parse_changes",
    "read_inputs",
    "rescore",
    "run",
    "sensitivity",
    "stored_changes",
    "stored_model",
    "stored_plans",
    "stored_platform",
    "stored_steps",
    "stored_transformer",
    "validation_to_json",
    "write_rescored",
]
