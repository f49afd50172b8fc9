"""The inner search: from a problem to a sharding plan."""

from __future__ import annotations

from dse.solver._search import SolvedPlan
from dse.solver._search import SolverSettings
from dse.solver._search import planning_request
from dse.solver._search import solve

__all__ = ["SolvedPlan", "SolverSettings", "planning_request", "solve"]
