"""Analysing finished trials: front, hypervolume, bounds, conclusion."""

from __future__ import annotations

from dse.search.analyse._decision import (
    Choice,
    Decision,
    Doubling,
    conclude,
    decide,
    recommended_trial,
)
from dse.search.analyse._front_moves import BestMove, FrontMove, best_moves, front_moves
from dse.search.analyse._hypervolume import hypervolume
from dse.search.analyse._outcomes import Outcome, front_outcomes
from dse.search.analyse._pareto import pareto_mask
from dse.search.analyse._reasons import ReasonGroup, group_reasons
from dse.search.analyse._scaling import Scaling, ScalingPoint, scaling
from dse.search.analyse._settings import searched_names, setting_texts

__all__ = [
    "BestMove",
    "Choice",
    "Decision",
    "Doubling",
    "FrontMove",
    "Outcome",
    "ReasonGroup",
    "Scaling",
    "ScalingPoint",
    "best_moves",
    "conclude",
    "decide",
    "front_moves",
    "front_outcomes",
    "group_reasons",
    "hypervolume",
    "pareto_mask",
    "recommended_trial",
    "scaling",
    "searched_names",
    "setting_texts",
]
