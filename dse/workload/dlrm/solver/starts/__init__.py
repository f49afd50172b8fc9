"""Starts of the local search: constructed plans, and cuts chosen by linear programs."""

from __future__ import annotations

from dse.workload.dlrm.solver.starts._constructor import Constructor
from dse.workload.dlrm.solver.starts._hierarchical import (
    HierarchicalBalancer,
    hierarchical_starts,
)
from dse.workload.dlrm.solver.starts._relaxed import relaxed_cuts, rounded

__all__ = [
    "Constructor",
    "HierarchicalBalancer",
    "hierarchical_starts",
    "relaxed_cuts",
    "rounded",
]
