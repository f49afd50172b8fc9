"""Proposing configurations: samplers."""

from __future__ import annotations

from dse.search.propose._proposer import Batch, Proposal, Proposer, Rejection

__all__ = ["Batch", "Proposal", "Proposer", "Rejection"]
