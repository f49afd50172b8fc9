"""What comes out of a search for a sharding plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.sharding import ShardingPlan


@dataclass(frozen=True, slots=True)
class ShardingSolution:
    """The best plan found, and how good it is known to be.

    Attributes:
        plan: The plan.
        iteration_time_s: Expected time of one iteration.
        lower_bound_s: No plan within the same limits is faster; None when it is not known.
        gap: By how much the plan may be slower than the best one, as a share of the lower bound;
            None without a bound.
        planning_time_s: Wall-clock time of the search.
        bound_time_s: Wall-clock time of the lower bound, which comes after it.
        plans_scored: Plans that were scored on the way.
        planner: How the plan was found, in words.
        fits: Whether devices and host memory hold it.
        peak_memory_bytes: Device memory of the fullest rank.
    """

    plan: ShardingPlan
    iteration_time_s: float
    lower_bound_s: float | None
    gap: float | None
    planning_time_s: float
    bound_time_s: float
    plans_scored: int
    planner: str
    fits: bool
    peak_memory_bytes: float
