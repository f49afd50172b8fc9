"""The Pareto front of a study, and what it beat."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.report._metrics import metric_formats
from dse.report.picture._lines import Frame, Line, lines_svg, round_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.search import StudyResult

#: Ticks of the axis that begins at 0, about.
_TICKS = 5


def front_svg(result: StudyResult) -> str:
    """Returns the picture: the first objective over the second; empty if it cannot be drawn.

    It needs two objectives, values above 0, and a feasible configuration.

    Args:
        result: What the study looked at.
    """
    if len(result.objectives) < 2:
        return ""
    metrics = metric_formats(result)
    up, across = (metrics[objective.metric] for objective in result.objectives[:2])
    known = [one for one in result.records if one.prediction and one.prediction.feasible]

    def points(*, on_front: bool) -> list[tuple[float, float]]:
        values = (record.metrics for record in known if record.on_front == on_front)
        found = [(one[across.name] * across.scale, one[up.name] * up.scale) for one in values]
        return sorted(one for one in found if all(0.0 < value < math.inf for value in one))

    front, others = points(on_front=True), points(on_front=False)
    if not front:
        return ""
    widths = [x for x, _ in [*front, *others]]
    low, high = min(widths) / 1.1, max(widths) * 1.1
    top = 1.08 * max(y for _, y in [*front, *others])
    step = round_step(top / _TICKS)
    lines = [Line("", front), Line("on the front", front, dots=True)]
    if others:
        lines.append(Line("not on it", others, dots=True))
    return lines_svg(
        Frame(
            title=f"{result.name}: {len(front)} on the front of {len(known)} feasible",
            x_title=across.title_with_unit,
            y_title=up.title_with_unit,
            x_range=(low, high),
            y_top=top,
            x_ticks=[(value, f"{value:g}") for value in _log_ticks(low, high)],
            y_ticks=[(n * step, f"{n * step:g}") for n in range(int(top / step) + 1)],
        ),
        lines,
    )


def _log_ticks(low: float, high: float) -> Sequence[float]:
    """1, 2 and 5 times powers of ten between two numbers; 1 to 9 times if these are too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ([1, 2, 5], [*range(1, 10)], [n / 10 for n in range(10, 100)]):
        places = (round(factor * 10.0**power, 12) for power in powers for factor in factors)
        ticks = [place for place in places if low <= place <= high]
        if len(ticks) >= 2:
            break
    return ticks
