"""The hypervolume of a front: how much of the objective space it dominates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.search.analyse._pareto import pareto_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

#: Most objectives of a search space.
_MAX_OBJECTIVES = 3


def hypervolume(points: ArrayLike, reference: ArrayLike, maximize: Sequence[bool]) -> float:
    """Returns the volume between a reference point and the points that are better, exactly.

    Points that are not better than the reference in every objective, and those with a NaN, add
    nothing.

    METHOD: Zitzler and Thiele, PPSN 1998 (the measure); in three objectives by slices along the
    last one, each slice a sum of rectangles.

    Args:
        points: Objective values; shape `(points, objectives)`, one to three objectives.
        reference: A point that is worse; shape `(objectives,)`.
        maximize: Direction of each objective.

    Raises:
        ConfigError: There are more than three objectives, or the shapes do not fit.
    """
    signs = np.where(np.asarray(maximize, dtype=bool), -1.0, 1.0)
    count = len(signs)
    values = np.asarray(points, dtype=np.float64)
    limit = np.asarray(reference, dtype=np.float64)
    if not 1 <= count <= _MAX_OBJECTIVES:
        raise ConfigError(f"hypervolume of {count} objectives; expected 1 to {_MAX_OBJECTIVES}")
    if limit.shape != (count,) or values.size % count or values.ndim > 2:
        raise ConfigError(
            f"hypervolume of points of shape {values.shape} from a reference of shape "
            f"{limit.shape}; expected (points, {count}) and ({count},)"
        )
    costs = values.reshape(-1, count) * signs
    limit = limit * signs
    costs = costs[(costs < limit).all(axis=1)]
    costs = np.unique(costs[pareto_mask(costs, [False] * count)], axis=0)
    if not len(costs):
        return 0.0
    if count == 1:
        return float(limit[0] - costs[0, 0])
    if count == 2:
        return _area(costs, limit)
    return _volume(costs, limit)


def _area(costs: NDArray[np.float64], limit: NDArray[np.float64]) -> float:
    """Area of a front of two costs whose points are sorted by the first one."""
    width = np.diff(np.append(costs[:, 0], limit[0]))
    return float(np.sum(width * (limit[1] - costs[:, 1])))


def _volume(costs: NDArray[np.float64], limit: NDArray[np.float64]) -> float:
    """Volume of a front of three costs: between two values of the last one, the area so far."""
    order = np.argsort(costs[:, 2], kind="stable")
    ordered = costs[order]
    depth = np.diff(np.append(ordered[:, 2], limit[2]))
    front = np.empty((0, 2))
    volume = 0.0
    for point, thickness in zip(ordered, depth, strict=True):
        # Those that the new point beats in both of the other costs are covered from here on.
        front = front[~(front >= point[:2]).all(axis=1)]
        if not (front <= point[:2]).all(axis=1).any():
            place = int(np.searchsorted(front[:, 0], point[0]))
            front = np.insert(front, place, point[:2], axis=0)
        if thickness > 0:
            volume += thickness * _area(front, limit[:2])
    return float(volume)
