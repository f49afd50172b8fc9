"""Search spaces: schema, parameters, objectives and constraints."""

from __future__ import annotations

from dse.space._load import list_spaces
from dse.space._load import load_space
from dse.space._metrics import Metric
from dse.space._schema import TYPE_SEPARATOR
from dse.space._schema import SpaceDocument
from dse.space._space import Constraint
from dse.space._space import Parameter
from dse.space._space import ParameterValue
from dse.space._space import SamplerName
from dse.space._space import SearchSettings
from dse.space._space import SearchSpace
from dse.space._space import Objective

__all__ = [
    "TYPE_SEPARATOR",
    "Constraint",
    "Metric",
    "Parameter",
    "ParameterValue",
    "SamplerName",
    "SearchSettings",
    "SearchSpace",
    "SpaceDocument",
    "Objective",
    "list_spaces",
    "load_space",
]
