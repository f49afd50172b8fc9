"""Results on a terminal, one module a type of result; those of search are in `studies`."""

from __future__ import annotations

from dse.report.terminal._calibration import calibration_rows, print_calibrations
from dse.report.terminal._collective import print_collective, print_collectives
from dse.report.terminal._explanation import print_explanation
from dse.report.terminal._overheads import print_overheads
from dse.report.terminal._prediction import (
    PredictionView,
    RankingRow,
    print_difference,
    print_prediction,
    print_ranking,
)
from dse.report.terminal._replay import print_replay_result
from dse.report.terminal._sharding import ShardingView, print_sharding
from dse.report.terminal._trace import (
    print_resimulation,
    print_sizes,
    print_streams,
    print_trace_summary,
)
from dse.report.terminal._whatif import print_optimizations, print_what_if

__all__ = [
    "PredictionView",
    "RankingRow",
    "ShardingView",
    "calibration_rows",
    "print_calibrations",
    "print_collective",
    "print_collectives",
    "print_difference",
    "print_explanation",
    "print_optimizations",
    "print_overheads",
    "print_prediction",
    "print_ranking",
    "print_replay_result",
    "print_resimulation",
    "print_sharding",
    "print_sizes",
    "print_streams",
    "print_trace_summary",
    "print_what_if",
]
