"""Search spaces: schema, parameters, objectives and constraints."""

from __future__ import annotations

from dse.search.space._load import list_spaces, load_space
from dse.search.space._metrics import KNOWN_METRICS, Metric
from dse.search.space._model_schema import PLACEMENT_PREFIX, TYPE_SEPARATOR
from dse.search.space._schema import SpaceDocument
from dse.search.space._space import (
    Constraint,
    ModelWorkload,
    Objective,
    Parameter,
    ParameterValue,
    PlanSearch,
    SamplerName,
    SearchSettings,
    SearchSpace,
    TraceWorkload,
    WorkloadKind,
)
from dse.search.space._trace_schema import (
    NO_OPTIMIZATION,
    OPTIMIZATION_SEPARATOR,
    SAME_PLATFORM,
    is_step_file,
)

__all__ = [
    "KNOWN_METRICS",
    "NO_OPTIMIZATION",
    "OPTIMIZATION_SEPARATOR",
    "PLACEMENT_PREFIX",
    "SAME_PLATFORM",
    "TYPE_SEPARATOR",
    "Constraint",
    "Metric",
    "ModelWorkload",
    "Objective",
    "Parameter",
    "ParameterValue",
    "PlanSearch",
    "SamplerName",
    "SearchSettings",
    "SearchSpace",
    "SpaceDocument",
    "TraceWorkload",
    "WorkloadKind",
    "is_step_file",
    "list_spaces",
    "load_space",
]
