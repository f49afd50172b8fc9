"""Measured iteration times, and training results, of candidates on real ranks."""

from __future__ import annotations

from dse.validation.measurement._ranks import train
from dse.validation.measurement._rounds import measure
from dse.validation.measurement._samples import BudgetError, MeasureLimits, budget_text

__all__ = ["BudgetError", "MeasureLimits", "budget_text", "measure", "train"]
