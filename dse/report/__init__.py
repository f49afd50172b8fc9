"""Results for people: tables on a terminal, the study page, and time lines.

`dse.report.terminal` has what prints a result, `dse.report.console` its lines, tables and numbers.
"""

from __future__ import annotations

from dse.report._metrics import front_table
from dse.report._perfetto import write_timeline
from dse.report.page import ReportView, build_view, render_report, write_report

__all__ = [
    "ReportView",
    "build_view",
    "front_table",
    "render_report",
    "write_report",
    "write_timeline",
]
