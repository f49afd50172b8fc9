"""Search: studies, samplers, executors, resume."""

from __future__ import annotations

from dse.search._certificate import Certificate
from dse.search._export import export_files, export_text
from dse.search._header import StorageNote
from dse.search._inputs import StudyInputs, read_inputs
from dse.search._load import (
    load_study,
    stored_platform,
    stored_source,
    stored_space,
    stored_steps,
    stored_workload,
)
from dse.search._options import Progress, RunOptions, Study
from dse.search._records import (
    Fact,
    InputFile,
    StudyResult,
    StudyTrace,
    TrialRecord,
    TrialStatus,
)
from dse.search._result import mark_front
from dse.search._run import run
from dse.search._tables import trial_table
from dse.search._validation import (
    CalibrationFactor,
    RankingMetrics,
    ValidatedCandidate,
    Validation,
    ValidationMode,
    ValidationSetting,
    validation_to_json,
)
from dse.search.analyse._decision import (
    Choice,
    Decision,
    Doubling,
    conclude,
    decide,
    recommended_trial,
)
from dse.search.analyse._front_moves import BestMove, FrontMove, best_moves, front_moves
from dse.search.analyse._hypervolume import hypervolume
from dse.search.analyse._outcomes import Outcome, front_outcomes
from dse.search.analyse._pareto import pareto_mask
from dse.search.analyse._reasons import ReasonGroup, group_reasons
from dse.search.analyse._scaling import Scaling, ScalingPoint, scaling
from dse.search.analyse._sensitivity import (
    SENSITIVITY_INPUTS,
    SensitivityBar,
    SensitivityInput,
    sensitivity,
)
from dse.search.analyse._settings import searched_names, setting_texts
from dse.search.compare._inputs import InputDifference
from dse.search.compare._studies import (
    CommonCandidate,
    StudyComparison,
    compare_studies,
)
from dse.search.evaluate._configurations import ConfigurationEvaluator, WorkloadContext
from dse.search.evaluate._evaluator import EvaluationContext, Evaluator
from dse.search.evaluate._objective import ObjectiveFunction
from dse.search.execute import Executor, ProcessExecutor, RayExecutor, SerialExecutor
from dse.search.revise._overrides import stored_overrides
from dse.search.revise._revise import Revision, RevisionProgress, revise_study
from dse.search.revise._stored import study_evaluator
from dse.search.revise._write import write_revision
from dse.search.space import Objective
from dse.workload import ParameterValue

__all__ = [
    "SENSITIVITY_INPUTS",
    "BestMove",
    "CalibrationFactor",
    "Certificate",
    "Choice",
    "CommonCandidate",
    "ConfigurationEvaluator",
    "Decision",
    "Doubling",
    "EvaluationContext",
    "Evaluator",
    "Executor",
    "Fact",
    "FrontMove",
    "InputDifference",
    "InputFile",
    "Objective",
    "ObjectiveFunction",
    "Outcome",
    "ParameterValue",
    "ProcessExecutor",
    "Progress",
    "RankingMetrics",
    "RayExecutor",
    "ReasonGroup",
    "Revision",
    "RevisionProgress",
    "RunOptions",
    "Scaling",
    "ScalingPoint",
    "SensitivityBar",
    "SensitivityInput",
    "SerialExecutor",
    "StorageNote",
    "Study",
    "StudyComparison",
    "StudyInputs",
    "StudyResult",
    "StudyTrace",
    "TrialRecord",
    "TrialStatus",
    "ValidatedCandidate",
    "Validation",
    "ValidationMode",
    "ValidationSetting",
    "WorkloadContext",
    "best_moves",
    "compare_studies",
    "conclude",
    "decide",
    "export_files",
    "export_text",
    "front_moves",
    "front_outcomes",
    "group_reasons",
    "hypervolume",
    "load_study",
    "mark_front",
    "pareto_mask",
    "read_inputs",
    "recommended_trial",
    "revise_study",
    "run",
    "scaling",
    "searched_names",
    "sensitivity",
    "setting_texts",
    "stored_overrides",
    "stored_platform",
    "stored_source",
    "stored_space",
    "stored_steps",
    "stored_workload",
    "study_evaluator",
    "trial_table",
    "validation_to_json",
    "write_revision",
]
