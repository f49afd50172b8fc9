"""The inner search: from a problem to a sharding plan."""

from __future__ import annotations

from dse.solver._search import SolvedPlan, SolverSettings, planning_request, solve

__all__ = ["SolvedPlan", "SolverSettings", "planning_request", "solve"]
