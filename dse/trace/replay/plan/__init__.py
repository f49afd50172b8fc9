"""The plan of a replay: what is called in which order, with which tensors."""

from __future__ import annotations

from dse.trace.replay.plan._collectives import CollectiveBinder, group_of
from dse.trace.replay.plan._constraints import (
    ConstraintKind,
    InputConstraint,
    constraints_of,
    doubtful_memories,
    lookup_memories,
    offset_memories,
    outside_constraints,
)
from dse.trace.replay.plan._finder import OperatorFinder, mapped_device
from dse.trace.replay.plan._plan import (
    PlannedCall,
    ReplayPlan,
    TensorSlot,
    result_slots,
)
from dse.trace.replay.plan._planner import Planner

__all__ = [
    "CollectiveBinder",
    "ConstraintKind",
    "InputConstraint",
    "OperatorFinder",
    "PlannedCall",
    "Planner",
    "ReplayPlan",
    "TensorSlot",
    "constraints_of",
    "doubtful_memories",
    "group_of",
    "lookup_memories",
    "mapped_device",
    "offset_memories",
    "outside_constraints",
    "result_slots",
]
