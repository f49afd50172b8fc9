"""Recommendation models: one training step with its tables sharded over the ranks."""

from __future__ import annotations

from dse.workload.dlrm._job import DlrmJob
from dse.workload.dlrm._parameters import (
    NO_CONSTRAINTS,
    TYPE_SEPARATOR,
    DlrmParameters,
)
from dse.workload.dlrm._problem import DlrmProblem, WeightSync, make_problem
from dse.workload.dlrm._workload import DlrmWorkload
from dse.workload.dlrm.iteration._durations import slot_durations_s
from dse.workload.dlrm.iteration._exchange_durations import first_steps_s
from dse.workload.dlrm.iteration._layout import build_layout
from dse.workload.dlrm.program._pipelines import TrainPipeline
from dse.workload.dlrm.program._programs import DLRM_PROGRAMS, DlrmProgram
from dse.workload.dlrm.program._software import (
    DenseBottom,
    DlrmRuntime,
    HandlingTimes,
    HostOperators,
    InputPath,
    KeySearch,
)
from dse.workload.dlrm.program._wire import WireFormat, WireFormats
from dse.workload.dlrm.scoring._features import ExchangeGroup, exchange_group
from dse.workload.dlrm.scoring._scorer import PlanScorer, PlanScores
from dse.workload.dlrm.scoring._slots import NODE_SLOTS, LayoutGraph, Slot

__all__ = [
    "DLRM_PROGRAMS",
    "NODE_SLOTS",
    "NO_CONSTRAINTS",
    "TYPE_SEPARATOR",
    "DenseBottom",
    "DlrmJob",
    "DlrmParameters",
    "DlrmProblem",
    "DlrmProgram",
    "DlrmRuntime",
    "DlrmWorkload",
    "ExchangeGroup",
    "HandlingTimes",
    "HostOperators",
    "InputPath",
    "KeySearch",
    "LayoutGraph",
    "PlanScorer",
    "PlanScores",
    "Slot",
    "TrainPipeline",
    "WeightSync",
    "WireFormat",
    "WireFormats",
    "build_layout",
    "exchange_group",
    "first_steps_s",
    "make_problem",
    "slot_durations_s",
]
