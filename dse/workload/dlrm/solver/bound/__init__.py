"""Lower bound on the iteration time, and the relaxation it comes from."""

from __future__ import annotations

from dse.workload.dlrm.solver.bound._choices import Choices, table_choices
from dse.workload.dlrm.solver.bound._durations import SlotModel, slot_model
from dse.workload.dlrm.solver.bound._layout import Relaxed
from dse.workload.dlrm.solver.bound._lower_bound import LowerBound, lower_bound
from dse.workload.dlrm.solver.bound._nodes import Node, RelaxedProblem, relaxed_problem
from dse.workload.dlrm.solver.bound._relaxation import LayoutRelaxation

__all__ = [
    "Choices",
    "LayoutRelaxation",
    "LowerBound",
    "Node",
    "Relaxed",
    "RelaxedProblem",
    "SlotModel",
    "lower_bound",
    "relaxed_problem",
    "slot_model",
    "table_choices",
]
