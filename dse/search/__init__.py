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
from dse.search._overrides import stored_overrides
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

__all__ = [
    "CalibrationFactor",
    "Certificate",
    "Fact",
    "InputFile",
    "Progress",
    "RankingMetrics",
    "RunOptions",
    "StorageNote",
    "Study",
    "StudyInputs",
    "StudyResult",
    "StudyTrace",
    "TrialRecord",
    "TrialStatus",
    "ValidatedCandidate",
    "Validation",
    "ValidationMode",
    "ValidationSetting",
    "export_files",
    "export_text",
    "load_study",
    "mark_front",
    "read_inputs",
    "run",
    "stored_overrides",
    "stored_platform",
    "stored_source",
    "stored_space",
    "stored_steps",
    "stored_workload",
    "trial_table",
    "validation_to_json",
]
