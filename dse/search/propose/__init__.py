"""Proposing configurations: samplers, and placements as parameters."""

from __future__ import annotations

from dse.search.propose._joint import joint_plan, with_placements
from dse.search.propose._proposer import Batch, Proposal, Proposer, Rejection

__all__ = [
    "Batch",
    "Proposal",
    "Proposer",
    "Rejection",
    "joint_plan",
    "with_placements",
]
