"""Search spaces: schema, parameters, objectives and constraints."""

from __future__ import annotations

from dse.space._load import list_spaces, load_space
from dse.space._metrics import Metric
from dse.space._schema import TYPE_SEPARATOR, SpaceDocument
from dse.space._space import (
    Constraint,
    Objective,
    Parameter,
    ParameterValue,
    SamplerName,
    SearchSettings,
    SearchSpace,
)

__all__ = [
    "TYPE_SEPARATOR",
    "Constraint",
    "Metric",
    "Objective",
    "Parameter",
    "ParameterValue",
    "SamplerName",
    "SearchSettings",
    "SearchSpace",
    "SpaceDocument",
    "list_spaces",
    "load_space",
]
