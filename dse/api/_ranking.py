"""Sharding plans in order, as `dse.rank` returns them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dse._text.html import rows_html

if TYPE_CHECKING:
    from dse.sharding import ShardingPlan
    from dse.workload import Prediction


class Ranking(list["tuple[Path | ShardingPlan, Prediction]"]):
    """Plans with their predictions, the fastest first; plans that do not fit come last."""

    def __repr__(self) -> str:
        """Returns how many there are, and the best."""
        if not self:
            return "Ranking(no plan)"
        plan, prediction = self[0]
        count = "1 plan" if len(self) == 1 else f"{len(self)} plans"
        return f"Ranking({count}; the best is {_name(plan)}: {prediction!r})"

    def _repr_html_(self) -> str:
        """Shows the order in a notebook."""
        heads = ("", "plan", "ms", "90 % interval", "samples/s", "fits")
        return rows_html(
            heads,
            (
                (
                    str(place),
                    _name(plan),
                    f"{1e3 * found.iteration_time_s:.4g}",
                    "–".join(f"{1e3 * end_s:.4g}" for end_s in _interval_s(found)),
                    f"{found.throughput_samples_per_s:,.0f}",
                    "yes" if found.feasible else found.infeasible_reason,
                )
                for place, (plan, found) in enumerate(self, start=1)
            ),
        )


def _interval_s(found: Prediction) -> tuple[float, float]:
    return found.iteration_time_p5_s, found.iteration_time_p95_s


def _name(plan: Path | ShardingPlan) -> str:
    return str(plan) if isinstance(plan, Path) else repr(plan)
