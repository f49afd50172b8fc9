"""Search spaces: what may be chosen, what is wanted, and how to look for it."""

from __future__ import annotations

from dse.search.space._load import list_spaces, load_space
from dse.search.space._schema import SpaceDocument
from dse.search.space._space import (
    Constraint,
    Objective,
    PlanSearch,
    SamplerName,
    SearchSettings,
    SearchSpace,
)
from dse.search.space._workload_blocks import ModelReference, TraceReference, TraceWorkloadBlock

__all__ = [
    "Constraint",
    "ModelReference",
    "Objective",
    "PlanSearch",
    "SamplerName",
    "SearchSettings",
    "SearchSpace",
    "SpaceDocument",
    "TraceReference",
    "TraceWorkloadBlock",
    "list_spaces",
    "load_space",
]
