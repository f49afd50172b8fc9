"""Search: studies, samplers, executors, resume."""

from __future__ import annotations

from dse.search._records import Fact
from dse.search._records import InputFile
from dse.search._records import StudyResult
from dse.search._records import TrialRecord
from dse.search._records import TrialStatus
from dse.space import Objective
from dse.space import ParameterValue

__all__ = [
    "Fact",
    "InputFile",
    "Objective",
    "ParameterValue",
    "StudyResult",
    "TrialRecord",
    "TrialStatus",
]
