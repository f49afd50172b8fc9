"""Constraints on tables: what is demanded, and the placements that remain allowed."""

from __future__ import annotations

from dse.sharding.constraints._files import (
    ConstraintsDocument,
    TableConstraintsBlock,
    TablePattern,
    parse_allow,
    parse_pin,
    read_constraints,
)
from dse.sharding.constraints._placements import check_constraints, placements_allowed
from dse.sharding.constraints._types import AllowedPlacement, PlanningRequest, TableConstraints

__all__ = [
    "AllowedPlacement",
    "ConstraintsDocument",
    "PlanningRequest",
    "TableConstraints",
    "TableConstraintsBlock",
    "TablePattern",
    "check_constraints",
    "parse_allow",
    "parse_pin",
    "placements_allowed",
    "read_constraints",
]
