"""Affine functions below a curve: the lower convex envelope of what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Times that points between their neighbours are dropped before the rest is looked at one by one.
_PASSES = 12


@dataclass(frozen=True, slots=True)
class Envelope:
    """A convex, piecewise linear function, as the largest of its affine pieces.

    Attributes:
        starts: Where each piece begins, ascending; shape `(pieces,)`.
        slopes: Their slopes, ascending and not negative; shape `(pieces,)`.
        intercepts: Their values at zero; shape `(pieces,)`.
    """

    starts: NDArray[np.float64]
    slopes: NDArray[np.float64]
    intercepts: NDArray[np.float64]

    def piece_at(self, value: float) -> int:
        """Returns the piece that is the largest at a value."""
        return max(0, int(np.searchsorted(self.starts, value, side="right")) - 1)

    def at(self, value: float) -> float:
        """Returns the largest of all pieces at a value."""
        return float((self.slopes * value + self.intercepts).max())


def _lower_hull(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the points on the lower convex hull of points in ascending order of `x`."""
    left = np.arange(len(x))
    for _ in range(_PASSES):
        # What is not below the line through its neighbours is no corner, whatever else is.
        x_left, y_left = x[left], y[left]
        turns = (x_left[1:-1] - x_left[:-2]) * (y_left[2:] - y_left[:-2]) - (
            y_left[1:-1] - y_left[:-2]
        ) * (x_left[2:] - x_left[:-2])
        below = np.ones(len(left), dtype=bool)
        below[1:-1] = turns > 0
        if below.all():
            return left
        left = left[below]
    return left[_scanned(x[left].tolist(), y[left].tolist())]


def _scanned(x: list[float], y: list[float]) -> NDArray[np.int64]:
    """Returns the points on the lower convex hull, found one after the other."""
    # Lists: numbers that are taken out of arrays one by one cost ten times as much.
    hull: list[int] = []
    for point, (right, high) in enumerate(zip(x, y, strict=True)):
        while len(hull) > 1:
            first, middle = hull[-2], hull[-1]
            turn = (x[middle] - x[first]) * (high - y[first]) - (y[middle] - y[first]) * (
                right - x[first]
            )
            if turn > 0:
                break
            hull.pop()
        hull.append(point)
    return np.array(hull)


def envelope(grid: NDArray[np.float64], values: NDArray[np.float64]) -> Envelope:
    """Returns the largest convex function below all non-decreasing ones with these values.

    Between two grid points all that is known of a non-decreasing function is that it is not below
    its value at the left one. So the envelope is that of the points `(grid[i + 1], values[i])`,
    the lower right corners of the steps, and of the first point. Behind the last grid point it
    continues as its last piece, where it says nothing of the function.

    Values that fall nevertheless are lowered by what they fall in their neighbourhood: a smooth
    function that is sampled finely does not go further below the lower of two neighbours.

    Args:
        grid: Ascending; shape `(points,)`.
        values: Shape `(points,)`.
    """
    steps = np.diff(values)
    low = np.minimum(values[:-1], values[1:])
    if (steps < 0).any():
        dips = np.maximum(0.0, -steps)
        dips = np.maximum(dips, np.maximum(np.append(dips[1:], 0.0), np.append(0.0, dips[:-1])))
        low = np.minimum.accumulate((low - 2.0 * dips)[::-1])[::-1]
    x = np.append(grid[0], grid[1:])
    y = np.append(low[:1], low)
    corners = _lower_hull(x, y)
    if len(corners) == 1:
        return Envelope(x[:1], np.zeros(1), y[:1])
    slopes = np.maximum(0.0, np.diff(y[corners]) / np.diff(x[corners]))
    # From the right end of a piece backwards, so that rounding a slope up lifts nothing.
    intercepts = y[corners[1:]] - slopes * x[corners[1:]]
    intercepts = np.minimum(intercepts, y[corners[:-1]] - slopes * x[corners[:-1]])
    return Envelope(x[corners[:-1]], slopes, intercepts)
