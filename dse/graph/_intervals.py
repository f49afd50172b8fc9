"""Union of time intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def union_length(start: NDArray[Any], end: NDArray[Any]) -> Any:
    """Returns the length of the union of intervals, in the unit of their times.

    Overlapping time counts once. Whole numbers give a whole number.

    Args:
        start: Starts, in any order; shape `(intervals,)`, or `(intervals, columns)` for several
            unions at once.
        end: Ends, none before its start; same shape.

    Returns:
        A number, or an array of shape `(columns,)`; 0 without intervals.
    """
    if not len(start):
        return np.zeros(start.shape[1:], dtype=start.dtype)[()]
    order = np.argsort(start, axis=0, kind="stable")
    start, end = np.take_along_axis(start, order, 0), np.take_along_axis(end, order, 0)
    reach = np.maximum.accumulate(end, axis=0)
    # A gap lies between an interval and the latest end of all earlier ones.
    gaps = np.maximum(0, start[1:] - reach[:-1])
    return reach[-1] - start[0] - gaps.sum(axis=0)
