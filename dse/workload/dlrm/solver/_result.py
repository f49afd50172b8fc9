"""Results of a plan search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse._text.html import fields_html
from dse.sharding import format_size

if TYPE_CHECKING:
    from dse.sharding import ShardingPlan


@dataclass(frozen=True, slots=True)
class SolvedPlan:
    """The best plan found.

    Attributes:
        plan: The plan.
        planner: How it was found.
        plans_scored: Plans scored by the search.
        ties: Other plans that it was compared with in the end and that take as long, because the
            host binds; it has less work for the devices.
        time_without_hot_rows_s: Iteration time of the best plan found without hot rows; None
            unless a thorough search could choose them.
    """

    plan: ShardingPlan
    planner: str
    plans_scored: int
    ties: int = 0
    time_without_hot_rows_s: float | None = None


@dataclass(frozen=True, slots=True)
class ShardingSolution:
    """The best plan found, and how far it can be from the optimum.

    Attributes:
        plan: The plan.
        iteration_time_s: Expected time of one iteration.
        lower_bound_s: No plan within the same limits is faster; None if unknown.
        gap: How much slower than the best plan it may be, as a share of the lower bound; None
            without a bound.
        planning_time_s: Wall-clock time of the search.
        bound_time_s: Wall-clock time of the lower bound, which follows the search.
        plans_scored: Plans scored by the search.
        planner: How the plan was found.
        fits: Whether devices and host memory can hold it.
        peak_memory_bytes: Device memory of the fullest rank.
        ties: Other plans that it was compared with in the end and that take as long, because the
            host binds; it has less work for the devices.
        time_without_hot_rows_s: Iteration time of the best plan found without hot rows; None
            unless a thorough search could choose them.
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
    ties: int = 0
    time_without_hot_rows_s: float | None = None

    def __repr__(self) -> str:
        bound = "" if self.gap is None else f", at most {100 * self.gap:.1f} % above the best"
        return f"ShardingSolution({1e3 * self.iteration_time_s:.4g} ms{bound}: {self.plan!r})"

    def _repr_html_(self) -> str:
        """Shows the plan, its time and how far it can be from the best in a notebook."""
        known = self.lower_bound_s is not None and self.gap is not None
        fits = "fits" if self.fits else "does not fit"
        fields = (
            ("iteration time", f"{1e3 * self.iteration_time_s:.4g} ms"),
            ("lower bound", f"{1e3 * (self.lower_bound_s or 0.0):.4g} ms" if known else ""),
            ("gap", f"{100 * (self.gap or 0.0):.1f} %" if known else ""),
            ("memory", f"{format_size(self.peak_memory_bytes)} on the fullest rank; {fits}"),
            ("found by", f"{self.planner}, {self.plans_scored:,} plans scored"),
            ("search", f"{self.planning_time_s:.2g} s, bound {self.bound_time_s:.2g} s"),
        )
        return fields_html(repr(self.plan), fields)
