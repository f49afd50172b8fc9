"""Proposing configurations: best-first by optimistic points, or by Optuna's samplers."""

from __future__ import annotations

from dse.search.propose._best_first import BestFirst
from dse.search.propose._bounded import BoundedProposer
from dse.search.propose._choose import make_strategy, trials_wanted
from dse.search.propose._proposer import Proposer
from dse.search.propose._strategy import Strategy

__all__ = [
    "BestFirst",
    "BoundedProposer",
    "Proposer",
    "Strategy",
    "make_strategy",
    "trials_wanted",
]
