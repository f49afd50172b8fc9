"""Results for people: terminal tables and the study page."""

from __future__ import annotations

from dse.report._calibrations import CalibrationRow, calibration_rows, render_calibrations
from dse.report._compared import print_comparison
from dse.report._explain import PredictionColumn, render_difference, render_explanation
from dse.report._html import render_report, write_report
from dse.report._overheads import render_overheads
from dse.report._perfetto import write_timeline
from dse.report._recommended import print_recommendation, samples_of
from dse.report._replay import render_replay_result
from dse.report._rescored import print_rescored
from dse.report._sharding import ShardingView, render_sharding
from dse.report._step import StepColumn, render_step, render_step_difference
from dse.report._terminal import RankingRow, print_study, render_prediction, render_ranking
from dse.report._traces import (
    render_lanes,
    render_replay,
    render_sizes,
    render_trace_summary,
)
from dse.report._validation import ValidationView, render_validation, validation_view
from dse.report._view import ReportView, build_view
from dse.report._whatif import render_optimizations, render_what_if

__all__ = [
    "CalibrationRow",
    "PredictionColumn",
    "RankingRow",
    "ReportView",
    "ShardingView",
    "StepColumn",
    "ValidationView",
    "build_view",
    "calibration_rows",
    "print_comparison",
    "print_recommendation",
    "print_rescored",
    "print_study",
    "render_calibrations",
    "render_difference",
    "render_explanation",
    "render_lanes",
    "render_optimizations",
    "render_overheads",
    "render_prediction",
    "render_ranking",
    "render_replay",
    "render_replay_result",
    "render_report",
    "render_sharding",
    "render_sizes",
    "render_step",
    "render_step_difference",
    "render_trace_summary",
    "render_validation",
    "render_what_if",
    "samples_of",
    "validation_view",
    "write_report",
    "write_timeline",
]
