"""Results for people: terminal tables and the study page."""

from __future__ import annotations

from dse.report._html import render_report
from dse.report._html import write_report
from dse.report._terminal import RankingRow
from dse.report._terminal import print_study
from dse.report._terminal import render_prediction
from dse.report._terminal import render_ranking
from dse.report._view import ReportView
from dse.report._view import build_view

__all__ = [
    "RankingRow",
    "ReportView",
    "build_view",
    "print_study",
    "render_prediction",
    "render_ranking",
    "render_report",
    "write_report",
]
