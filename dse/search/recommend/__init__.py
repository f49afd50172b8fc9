"""The best machines, batch and plan for a goal: a throughput, a deadline or a budget."""

from __future__ import annotations

from dse.search.recommend._bench import Bench, ShardingBench
from dse.search.recommend._goals import (
    Budget,
    Deadline,
    Goal,
    HourlyBudget,
    Target,
    count_words,
    duration_words,
    job_cost_usd,
    rate_words,
)
from dse.search.recommend._recommend import RecommendOptions, recommend
from dse.search.recommend._search import best_options
from dse.search.recommend._step_bench import StepBench
from dse.search.recommend._types import Judgement, Option, Recommendation, Solved, Verdict

__all__ = [
    "Bench",
    "Budget",
    "Deadline",
    "Goal",
    "HourlyBudget",
    "Judgement",
    "Option",
    "RecommendOptions",
    "Recommendation",
    "ShardingBench",
    "Solved",
    "StepBench",
    "Target",
    "Verdict",
    "best_options",
    "count_words",
    "duration_words",
    "job_cost_usd",
    "rate_words",
    "recommend",
]
