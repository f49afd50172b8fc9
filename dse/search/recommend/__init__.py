"""The best machines, batch and plan for a goal: a throughput, a deadline or a budget."""

from __future__ import annotations

from dse.search.recommend._evaluate import OptionEvaluator
from dse.search.recommend._goals import (
    Budget,
    Deadline,
    Goal,
    HourlyBudget,
    Target,
    format_duration,
    format_rate,
    job_cost_usd,
    parse_goal,
)
from dse.search.recommend._recommend import RecommendOptions, option_evaluator, recommend
from dse.search.recommend._search import judge_options, recommendation
from dse.search.recommend._types import (
    SURE,
    Judgement,
    Option,
    Recommendation,
    Solved,
    Unpriced,
    Verdict,
)

__all__ = [
    "SURE",
    "Budget",
    "Deadline",
    "Goal",
    "HourlyBudget",
    "Judgement",
    "Option",
    "OptionEvaluator",
    "RecommendOptions",
    "Recommendation",
    "Solved",
    "Target",
    "Unpriced",
    "Verdict",
    "format_duration",
    "format_rate",
    "job_cost_usd",
    "judge_options",
    "option_evaluator",
    "parse_goal",
    "recommend",
    "recommendation",
]
