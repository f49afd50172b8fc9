"""The performance model: from a configuration to iteration time, memory, cost and their spread."""

from __future__ import annotations

from dse.machine.kernels import EmbeddingKernels
from dse.workload._iteration import DurationClass
from dse.workload._launch import LaunchMode
from dse.workload._predict import PairedComparison
from dse.workload._prediction import MemoryAccount as RankMemory
from dse.workload._prediction import Prediction
from dse.workload.dlrm._api import predict, problem_of
from dse.workload.dlrm._durations import slot_durations_s
from dse.workload.dlrm._features import ExchangeGroup, exchange_group
from dse.workload.dlrm._job import (
    DlrmJob,
    compare_plans,
    predict_plan,
    sample_iteration_times_s,
)
from dse.workload.dlrm._layout import build_layout
from dse.workload.dlrm._parameters import PLACEMENT_PREFIX, TYPE_SEPARATOR, DlrmParameters
from dse.workload.dlrm._problem import DlrmProblem, make_problem
from dse.workload.dlrm._programs import DLRM_PROGRAMS, DlrmProgram
from dse.workload.dlrm._scorer import PlanScorer, PlanScores
from dse.workload.dlrm._slots import LayoutGraph, Slot
from dse.workload.dlrm._software import DenseBottom, DlrmRuntime, InputPath
from dse.workload.dlrm._types import Configuration
from dse.workload.dlrm._workload import DlrmWorkload

__all__ = [
    "DLRM_PROGRAMS",
    "PLACEMENT_PREFIX",
    "TYPE_SEPARATOR",
    "Configuration",
    "DenseBottom",
    "DlrmJob",
    "DlrmParameters",
    "DlrmProblem",
    "DlrmProgram",
    "DlrmRuntime",
    "DlrmWorkload",
    "DurationClass",
    "EmbeddingKernels",
    "ExchangeGroup",
    "InputPath",
    "LaunchMode",
    "LayoutGraph",
    "PairedComparison",
    "PlanScorer",
    "PlanScores",
    "Prediction",
    "RankMemory",
    "Slot",
    "build_layout",
    "compare_plans",
    "exchange_group",
    "make_problem",
    "predict",
    "predict_plan",
    "problem_of",
    "sample_iteration_times_s",
    "slot_durations_s",
]
