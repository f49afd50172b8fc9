"""Conclusion of a study in one line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.workload import workload_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.search._records import TrialRecord, TrialStatus
    from dse.search.space import Objective


def conclude(objectives: Sequence[Objective], records: Sequence[TrialRecord]) -> str:
    """Names the best configuration of every objective and the knee of the front.

    The knee is the front point farthest from the straight line between the best points of the
    first two objectives, both scaled to the front's range: where gaining on one side starts to
    cost much on the other.

    Args:
        objectives: Axes of the front.
        records: All trials, the front marked.

    Returns:
        One line; when nothing is feasible, the most frequent reason.
    """
    front = [record for record in records if record.on_front]
    if not front:
        return _nothing_feasible(records)
    values = np.array([record.values for record in front])
    signs = np.array([-1.0 if axis.maximize else 1.0 for axis in objectives])
    costs = values * signs
    parts = []
    for column, axis in enumerate(objectives):
        best = front[int(np.argmin(costs[:, column]))]
        parts.append(f"{_superlative(axis, best)}: {describe(best)}")
    if len(objectives) > 1 and len(front) > 2:
        parts.append(f"the knee: {describe(front[knee_index(costs[:, :2])])}")
    return "; ".join(parts)


def recommended_trial(
    objectives: Sequence[Objective], records: Sequence[TrialRecord]
) -> TrialRecord | None:
    """Returns the knee of the front.

    The best in the first objective if the front has fewer than three points or there is only one
    objective; None if nothing is feasible. Of several points that are equally far out, the one
    with the lowest number counts.

    Args:
        objectives: Axes of the front.
        records: All trials in the order of their numbers, the front marked.
    """
    front = [record for record in records if record.on_front]
    if not front:
        return None
    signs = np.array([-1.0 if axis.maximize else 1.0 for axis in objectives])
    costs = np.array([record.values for record in front]) * signs
    if len(objectives) > 1 and len(front) > 2:
        return front[knee_index(costs[:, :2])]
    return front[int(np.argmin(costs[:, 0]))]


def knee_index(costs: np.ndarray) -> int:
    """Returns the point farthest below the chord between the two extreme points.

    Args:
        costs: Two costs of each front point, less is better; shape `(points, 2)`.
    """
    low, high = costs.min(axis=0), costs.max(axis=0)
    scaled = (costs - low) / np.where(high > low, high - low, 1.0)
    first, second = scaled[np.argmin(scaled[:, 0])], scaled[np.argmin(scaled[:, 1])]
    direction = second - first
    length = float(np.hypot(*direction)) or 1.0
    offset = scaled - first
    below = (direction[1] * offset[:, 0] - direction[0] * offset[:, 1]) / length
    # The sign that means "towards the origin" depends on which extreme comes first.
    towards_origin = direction[1] * -first[0] - direction[0] * -first[1]
    return int(np.argmax(below * (1.0 if towards_origin >= 0 else -1.0)))


def _superlative(axis: Objective, best: TrialRecord) -> str:
    if best.configuration is None:
        return f"best {axis.metric}"
    metric = workload_kind(best.configuration.kind).metric(axis.metric)
    usual = axis.maximize == metric.maximize
    return (usual and metric.superlative) or f"best {metric.noun}"


def describe(record: TrialRecord) -> str:
    """Describes a configuration in a few words."""
    configuration, prediction = record.configuration, record.prediction
    if configuration is None or prediction is None:
        return f"#{record.number}"
    described = workload_kind(configuration.kind).describe(configuration, prediction)
    text = f"#{record.number} {described}"
    if record.plan_gap is not None:
        text += f", plan at most {100 * record.plan_gap:.1f} % slower than the best possible"
    return text


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Configurations that were left out for the same kind of reason.

    Attributes:
        example: The reason of the first of them.
        status: Their status.
        count: How many they are.
    """

    example: str
    status: TrialStatus
    count: int


def group_reasons(records: Sequence[TrialRecord]) -> tuple[ReasonGroup, ...]:
    """Groups reasons that differ in their figures only, the most frequent group first."""
    counts: Counter[tuple[str, TrialStatus]] = Counter()
    examples: dict[tuple[str, TrialStatus], str] = {}
    for record in records:
        if record.reason:
            # Figures vary from trial to trial; the first words say what kind of reason it is.
            masked = "".join("#" if sign.isdigit() else sign for sign in record.reason)
            key = (" ".join(masked.split()[:4]), record.status)
            counts[key] += 1
            examples.setdefault(key, record.reason)
    return tuple(ReasonGroup(examples[key], key[1], count) for key, count in counts.most_common())


def _nothing_feasible(records: Sequence[TrialRecord]) -> str:
    reasons = group_reasons(records)
    if not reasons:
        return "nothing was evaluated"
    most = reasons[0]
    return f"nothing is feasible; most often ({most.count} of {len(records)}): {most.example}"
