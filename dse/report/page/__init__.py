"""The study page."""

from __future__ import annotations

from dse.report.page._html import render_report, write_report
from dse.report.page._validation import ValidationView, validation_view
from dse.report.page._view import ReportView, build_view

__all__ = [
    "ReportView",
    "ValidationView",
    "build_view",
    "render_report",
    "validation_view",
    "write_report",
]
