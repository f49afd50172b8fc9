"""Validation of a study: its best candidates run for real and compared with their predictions."""

from __future__ import annotations

from dse.validation.study._options import ValidateOptions
from dse.validation.study._validate import validate_study
from dse.validation.study.runs import scale_model, scaling_text

__all__ = ["ValidateOptions", "scale_model", "scaling_text", "validate_study"]
