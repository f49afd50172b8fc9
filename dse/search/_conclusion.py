"""A study in one line of words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from dse.search._records import TrialStatus
from dse.space import Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.search._records import TrialRecord
    from dse.space import Objective

_SUPERLATIVES = {
    (Metric.THROUGHPUT, True): "fastest",
    (Metric.ITERATION_TIME, False): "shortest iteration",
    (Metric.COST, False): "cheapest per sample",
    (Metric.PRICE, False): "cheapest per hour",
    (Metric.MEMORY_HEADROOM, True): "most memory left",
    (Metric.WORLD_SIZE, False): "fewest devices",
    (Metric.GLOBAL_BATCH_SIZE, True): "largest batch",
}


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
        word = _SUPERLATIVES.get((axis.metric, axis.maximize), f"best {axis.metric.value}")
        parts.append(f"{word}: {describe(best)}")
    if len(objectives) > 1 and len(front) > 2:
        parts.append(f"the knee: {describe(front[knee_index(costs[:, :2])])}")
    return "; ".join(parts)


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


def describe(record: TrialRecord) -> str:
    """Names a configuration in a few words."""
    configuration, prediction = record.configuration, record.prediction
    if configuration is None or prediction is None:
        return f"#{record.number}"
    text = (
        f"#{record.number} {configuration.world_size} × {configuration.platform}, "
        f"batch {configuration.global_batch_size:,}, "
        f"{prediction.throughput_samples_per_s / 1e6:.2f} M samples/s"
    )
    if prediction.cost_usd_per_million_samples is not None:
        text += f" at {prediction.cost_usd_per_million_samples:.4f} USD per million"
    return text


def _nothing_feasible(records: Sequence[TrialRecord]) -> str:
    reasons = Counter(
        record.reason.split(":")[0] if record.status is TrialStatus.INFEASIBLE else record.reason
        for record in records
        if record.status is not TrialStatus.FEASIBLE and record.reason
    )
    if not reasons:
        return "nothing was evaluated"
    reason, count = reasons.most_common(1)[0]
    return f"nothing is feasible; most often ({count} of {len(records)}): {reason}"
