"""Revising a finished study under other inputs, plans kept; which inputs matter most."""

from __future__ import annotations

from dse.search.revise._revise import Revision, RevisionProgress, revise_study
from dse.search.revise._sensitivity import (
    SENSITIVITY_INPUTS,
    SensitivityBar,
    SensitivityInput,
    sensitivity,
)
from dse.search.revise._stored import study_evaluator
from dse.search.revise._write import write_revision

__all__ = [
    "SENSITIVITY_INPUTS",
    "Revision",
    "RevisionProgress",
    "SensitivityBar",
    "SensitivityInput",
    "revise_study",
    "sensitivity",
    "study_evaluator",
    "write_revision",
]
