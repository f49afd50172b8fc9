"""Pareto front of a set of points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def pareto_mask(values: NDArray[np.float64], maximize: Sequence[bool]) -> NDArray[np.bool_]:
    """Marks the points that no other point dominates.

    A point dominates another when it is at least as good in every objective and better in one.
    Equal points do not dominate each other, so all copies of a front point are marked. A point
    with a NaN is never marked and dominates none.

    Args:
        values: Objective values; shape `(points, objectives)`.
        maximize: Direction of each objective.

    Returns:
        Shape `(points,)`. The comparison is quadratic in the number of points that survive a
        sort by the first objective, with a vectorised inner loop.
    """
    signs = np.where(np.asarray(maximize, dtype=bool), -1.0, 1.0)
    costs = np.asarray(values, dtype=np.float64).reshape(-1, len(signs)) * signs
    mask = np.zeros(len(costs), dtype=bool)
    order = np.lexsort(costs.T[::-1])
    front = np.empty((0, len(signs)))
    for index in order[~np.isnan(costs[order]).any(axis=1)]:
        point = costs[index]
        # Earlier points are lexicographically no worse, so only they can dominate this one.
        no_worse = (front <= point).all(axis=1)
        better = (front < point).any(axis=1)
        if not (no_worse & better).any():
            mask[index] = True
            front = np.vstack((front, point))
    return mask
