"""Proposing configurations: best-first by optimistic points, or by Optuna's samplers."""

from __future__ import annotations

from dse.search.propose._best_first import BestFirst
from dse.search.propose._proposer import Proposer

__all__ = ["BestFirst", "Proposer"]
