"""Progress of the search: the hypervolume after each evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse._text.digits import significant
from dse.report._metrics import metric_formats
from dse.report.console import plural
from dse.report.page._payload import rounded
from dse.search import TrialStatus
from dse.search.analyse import hypervolume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.search import StudyResult

#: How far the reference point lies behind the worst values, as a share of their range; without it
#: points that are worst in one objective would add nothing.
REFERENCE_MARGIN = 0.1

#: Shares of the final hypervolume that the sentence names.
_SHARES = (0.95, 1.0)


@dataclass(frozen=True, slots=True)
class HypervolumeView:
    """The hypervolume of the front found so far, as a share of the final one.

    Attributes:
        evaluations: Evaluations after which it grew, counted from 1, and the last one.
        shares: Share of the final hypervolume from then on; shape of `evaluations`.
        reference: The reference point.
        sentence: What the line shows, or why it is empty.
    """

    evaluations: tuple[int, ...]
    shares: tuple[float, ...]
    reference: str
    sentence: str


def hypervolume_view(study: StudyResult) -> HypervolumeView:
    """Follows the hypervolume over the evaluations of a study, in the order of their numbers."""
    evaluated = [record for record in study.records if record.evaluated]
    feasible = [record.status is TrialStatus.FEASIBLE for record in evaluated]
    count = len(study.objectives)
    if not any(feasible):
        return HypervolumeView((), (), "", "No configuration is feasible, so there is no front.")
    points = np.full((len(evaluated), count), np.nan)
    for row, record in enumerate(evaluated):
        if feasible[row]:
            points[row] = record.values
    points[~np.isfinite(points).all(axis=1)] = np.nan
    if np.isnan(points).all():
        return HypervolumeView(
            (), (), "", "No feasible configuration has a value of every objective."
        )
    maximize = [axis.maximize for axis in study.objectives]
    reference = reference_point(points, maximize)
    history = hypervolume_history(points, reference, maximize)
    shares = history / history[-1]
    grown = np.flatnonzero(np.diff(shares, prepend=0.0) > 0)
    shown = np.unique(np.append(grown, len(shares) - 1))
    formats = metric_formats(study)
    shown_reference = ", ".join(
        f"{form.noun} {significant(value * form.scale, 4)} {form.unit}".rstrip()
        for axis, value in zip(study.objectives, reference, strict=True)
        for form in (formats[axis.metric],)
    )
    return HypervolumeView(
        evaluations=tuple(int(row) + 1 for row in shown),
        shares=tuple(rounded(shares[row]) for row in shown),
        reference=shown_reference,
        sentence=_sentence(shares),
    )


def reference_point(points: NDArray[np.float64], maximize: Sequence[bool]) -> NDArray[np.float64]:
    """Returns the worst value of each objective, moved out by a tenth of its range.

    Args:
        points: Objective values, rows with NaN are left out; shape `(points, objectives)`.
        maximize: Direction of each objective.

    Returns:
        Shape `(objectives,)`. Where all values are the same, they are moved by one, or by more
        where one is lost in rounding.
    """
    low, high = np.nanmin(points, axis=0), np.nanmax(points, axis=0)
    room = np.where(
        high > low, REFERENCE_MARGIN * (high - low), np.maximum(1.0, 1e-9 * np.abs(high))
    )
    reference: NDArray[np.float64] = np.where(maximize, low - room, high + room)
    return reference


def hypervolume_history(
    points: NDArray[np.float64], reference: NDArray[np.float64], maximize: Sequence[bool]
) -> NDArray[np.float64]:
    """Returns the hypervolume of the first point, of the first two, and so on, exactly.

    A point that joins the front adds the box between it and the reference, less what the front
    covers of that box: the hypervolume of the front's points moved into the box.

    METHOD: While, Bradstreet and Barone, IEEE Trans. Evol. Comput. 16(1), 2012 (exclusive
    hypervolume by a limited set).

    Args:
        points: Objective values in order of time; shape `(points, objectives)`. Rows with NaN add
            nothing.
        reference: A point that is worse; shape `(objectives,)`.
        maximize: Direction of each objective.

    Returns:
        Shape `(points,)`, never falling.
    """
    signs = np.where(np.asarray(maximize, dtype=bool), -1.0, 1.0)
    costs, limit = points * signs, reference * signs
    minimize = [False] * len(signs)
    history = np.zeros(len(costs))
    front = np.empty((0, len(signs)))
    volume = 0.0
    for row, point in enumerate(costs):
        inside = bool((point < limit).all())
        if inside and not (front <= point).all(axis=1).any():
            covered = _best(np.maximum(front, point))
            gained = float(np.prod(limit - point))
            if len(covered):
                gained -= hypervolume(covered, limit, minimize)
            volume += max(0.0, gained)
            front = np.vstack((front[~(point <= front).all(axis=1)], point))
        history[row] = volume
    return history


def _best(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Drops points that others dominate or equal; in a small box, those are most.

    The point of the least sum is beaten by none of the others, so one pass over what is left for
    each point that stays is enough.
    """
    kept = []
    while len(costs):
        best = costs[costs.sum(axis=1).argmin()]
        kept.append(best)
        costs = costs[(costs < best).any(axis=1)]
    return np.array(kept)


def _sentence(shares: NDArray[np.float64]) -> str:
    total = len(shares)
    # The last sums may differ from the final one by rounding.
    first = [int(np.argmax(shares >= share * (1 - 1e-9))) + 1 for share in _SHARES]
    end = f"the last gain came at evaluation {first[1]}" if first[1] > 1 else "nothing was gained"
    return (
        f"{_SHARES[0] * 100:.0f} % of the final hypervolume after {first[0]} of "
        f"{plural(total, 'evaluation')}; "
        f"{end}{' after the first' if first[1] == 1 else ''}."
    )
