"""Metrics as tables and pages show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.report.console import UNKNOWN
from dse.workload import workload_kind

if TYPE_CHECKING:
    from dse.search import StudyResult
    from dse.workload import Metric


def metric_formats(study: StudyResult) -> dict[str, Metric]:
    """Returns what each metric of a study is, in the order of columns."""
    return {metric.name: metric for metric in workload_kind(study.kind).metrics}


def with_number(metric: Metric, number: int | None, value: float) -> str:
    """Formats a value with the number of its candidate; None stands for no candidate."""
    return UNKNOWN if number is None else f"{metric.text(value)} (#{number})"
