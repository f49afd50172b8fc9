"""Convex functions below the durations of plan-dependent tasks, of what ranks hold on average.

Lookups and updates are a launch plus the longer of two linear terms, so they are convex. Exchanges
never get faster with more bytes, so their lower convex envelopes serve. All of them are sampled at
plans that are equal on all ranks, through the same functions that score plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import ExchangeGroup, Slot
from dse.workload.dlrm.scoring._features import (
    GROUP_BLOCK,
    RANK_BLOCK_START,
    SYNCED_FEATURE_COUNT,
    GroupFeature,
    group_column,
)
from dse.workload.dlrm.solver.bound._steps import ROWS, durations_and_steps_s, steps_of, task_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.workload.dlrm import DlrmProblem
    from dse.workload.dlrm.solver.bound._choices import Choices


#: Samples of a curve over bytes, most of them near plans of whole tables: points up to an eighth
#: of those bytes, up to half, up to all, and beyond.
_GRID_POINTS: tuple[int, ...] = (150, 200, 550, 120)

_GRID_SHARES: tuple[float, ...] = (1 / 8, 1 / 2, 1.0)

#: The same on several nodes, where all columns on one node are far beyond the average; with points
#: up to what cuts add to whole tables, up to four times that, and beyond.
_NODES_GRID_POINTS = (360, 540, 1200, 660, 660, 240)

_NODES_GRID_SHARES = (1 / 8, 1 / 2, 1.0, 1.6, 4.0)

#: Of the samples of an exchange, which ones are also sampled with one rank alone, and points
#: between what a rank holds of all columns on one node and all of them.
_EVERY_OF_ONE = 2

_BEYOND_POINTS = 40

#: Values on the ranks of a node that are expanded at once.
_CHUNK_ELEMENTS = 200_000

_EVERY_GROUP = (1 << len(ExchangeGroup)) - 1


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
    from scipy.optimize import isotonic_regression

    if len(x) == 1:
        return np.zeros(1, dtype=np.int64)
    # The slopes of the hull are those between neighbours, made ascending by averages over blocks.
    widths = np.diff(x)
    return isotonic_regression(np.diff(y) / widths, weights=widths).blocks


def envelope(grid: NDArray[np.float64], values: NDArray[np.float64]) -> Envelope:
    """Returns the largest convex function below all non-decreasing ones with these values.

    Between two grid points a non-decreasing function is only known not to be below its value at
    the left one. So the envelope is that of the points `(grid[i + 1], values[i])`, the lower
    right corners of the steps, and of the first point. Beyond the last grid point it continues
    as its last piece, but is no bound there.

    Values that decrease nevertheless are lowered by the decrease in their neighbourhood: a smooth
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


@dataclass(frozen=True, slots=True)
class LinearTerm:
    """Contribution of one feature to a lookup or update.

    The task lasts at least its launch (if there is work), plus the longest of the overlapping
    terms, plus the sum of the others.

    Attributes:
        slot: The `Slot`.
        feature: Row of the placement features.
        launch_s: Launch of the task.
        slope: Seconds for each unit of the feature.
        overlaps: Whether longer terms hide it.
    """

    slot: int
    feature: int
    launch_s: float
    slope: float
    overlaps: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The duration of an exchange over the one feature that it depends on.

    Attributes:
        slot: The `Slot`, or the row of one of its steps.
        feature: Row of the placement features.
        grid: Values of the feature on every rank, ascending; shape `(points,)`.
        duration_s: Shape `(points,)`.
        known: Cached envelopes.
    """

    slot: int
    feature: int
    grid: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    known: dict[tuple[int, int], Envelope] = field(default_factory=dict)

    def at(self, value: float) -> float:
        """Returns a lower bound on the duration at a value."""
        return float(self.duration_s[max(0, int(np.searchsorted(self.grid, value, "right")) - 1)])

    def between(self, least: float, most: float) -> Envelope:
        """Returns the envelope for values from `least` to `most`, or a little beyond."""
        first = max(0, int(np.searchsorted(self.grid, least, side="right")) - 1)
        last = max(first + 2, int(np.searchsorted(self.grid, most, side="left")) + 1)
        if (first, last) not in self.known:
            part = slice(first, last)
            self.known[first, last] = envelope(self.grid[part], self.duration_s[part])
        return self.known[first, last]


@dataclass(frozen=True, slots=True)
class SlotModel:
    """Lower bounds on the durations of plan-dependent tasks.

    Attributes:
        problem: Everything but the plan.
        linear: Terms of lookups and updates.
        curves: One of each exchange and feature.
        input_of_one: The input exchange, or its step inside nodes, if one rank alone receives
            something; none inside one node.
    """

    problem: DlrmProblem
    linear: tuple[LinearTerm, ...]
    curves: tuple[Curve, ...]
    input_of_one: Curve | None

    def of_one_s(self, group: ExchangeGroup, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns how long exchanges last if only one rank, or node, holds something of a group.

        Args:
            group: Pooled tables on ranks, or tables cut by rows over nodes.
            sizes: What it exchanges; shape `(points,)`.

        Returns:
            Seconds, with those of steps; shape `(rows, points)`.
        """
        holders = self.problem.cluster.domain_size if group is ExchangeGroup.NODE else 1
        feature = group_column(group, GroupFeature.EXCHANGED)
        return _of_one_s(self.problem, feature, sizes, holders)

    def alternatives(self, slot: int) -> list[tuple[LinearTerm, ...]]:
        """Returns sums of terms; the largest of them, plus a launch, is the task's duration."""
        terms = [term for term in self.linear if term.slot == slot]
        added = tuple(term for term in terms if not term.overlaps)
        overlapping = [(term, *added) for term in terms if term.overlaps]
        return overlapping or ([added] if added else [])


def slot_model(problem: DlrmProblem, choices: Choices) -> SlotModel:
    """Samples the durations of all plan-dependent tasks, over what plans of these choices hold."""
    # Ranks that wait for one another's rows from host memory wait most where all hold the same, so
    # balanced plans would not be below the others. A bound leaves the waiting out.
    cluster = problem.cluster
    alone = replace(
        cluster,
        host_link=replace(cluster.host_link, devices=1),
        host_memory_bandwidth_bytes_per_s=None,
    )
    problem = replace(problem, cluster=alone)
    highest = np.zeros(len(choices.total))
    for feature, values in enumerate(choices.total):
        most = np.zeros(len(choices.counts))
        np.maximum.at(most, choices.table_class, values)
        # All columns on one node: as many times the average as there are nodes.
        highest[feature] = (most * choices.counts).sum() / problem.cluster.domain_size
    used = np.flatnonzero(highest > 0)
    once = np.zeros((len(highest), 2 * len(used)))
    once[used, np.arange(len(used))] = highest[used]
    once[used, len(used) + np.arange(len(used))] = 2.0 * highest[used]
    durations = _balanced_s(problem, once)
    linear, curves = [], []
    for column, feature in enumerate(used.tolist()):
        single, double = durations[:, column], durations[:, len(used) + column]
        for slot in np.flatnonzero(single > 0).tolist():
            if slot < Slot.INPUT_EXCHANGE:
                slope = (double[slot] - single[slot]) / highest[feature]
                launch_s = max(0.0, 2.0 * single[slot] - double[slot])
                linear.append(LinearTerm(slot, feature, launch_s, slope))
        # Rows fetched ahead are those of single ranks, and no plan must have any.
        exchanges = [
            int(slot)
            for slot in np.flatnonzero(single > 0)
            if slot >= Slot.INPUT_EXCHANGE and slot != Slot.ROW_PREFETCH
        ]
        if exchanges:
            grid = _grid(problem.cluster, choices, feature, highest[feature])
            features = np.zeros((len(highest), len(grid)))
            features[feature] = grid
            sampled = _balanced_s(problem, features, _layout_of(feature))
            curves += [Curve(slot, feature, grid, sampled[slot]) for slot in exchanges]
    return SlotModel(
        problem,
        tuple(_with_overlap(problem, linear, highest)),
        tuple(curves),
        _input_of_one(problem, curves),
    )


def _input_of_one(problem: DlrmProblem, curves: list[Curve]) -> Curve | None:
    if problem.cluster.domain_count == 1:
        return None
    inputs = [curve for curve in curves if task_of(curve.slot) == Slot.INPUT_EXCHANGE]
    if not inputs:
        return None
    inside = steps_of(Slot.INPUT_EXCHANGE)[0]
    of = next((curve for curve in inputs if curve.slot == inside), inputs[0])
    # One rank may hold all that a node can.
    highest = of.grid[-1]
    beyond = highest * np.geomspace(1.0, problem.cluster.domain_size, _BEYOND_POINTS)
    grid = np.append(of.grid[:-1:_EVERY_OF_ONE], beyond)
    return Curve(of.slot, of.feature, grid, _of_one_s(problem, of.feature, grid, 1)[of.slot])


def _of_one_s(
    problem: DlrmProblem, feature: int, values: NDArray[np.float64], holders: int
) -> NDArray[np.float64]:
    """Returns durations of exchanges if the first ranks of one node hold all of a feature.

    Args:
        problem: Everything but the plan.
        feature: The feature.
        values: What each of them holds; shape `(points,)`.
        holders: How many ranks they are.

    Returns:
        Seconds, with those of steps; shape `(rows, points)`.
    """
    cluster = problem.cluster
    nodes = np.array([1.0, cluster.domain_count - 1.0])[: 2 if cluster.domain_count > 1 else 1]
    features = np.zeros((SYNCED_FEATURE_COUNT, len(nodes) * cluster.domain_size, len(values)))
    features[feature, :holders] = values
    found = durations_and_steps_s(problem, _layout_of(feature), features, nodes)
    return np.asarray(found.max(axis=1))


def _grid(cluster: Cluster, choices: Choices, feature: int, highest: float) -> NDArray[np.float64]:
    ranks, points, shares = cluster.world_size, _GRID_POINTS, _GRID_SHARES
    if cluster.domain_count > 1:
        points, shares = _NODES_GRID_POINTS, _NODES_GRID_SHARES
    values = choices.total[feature]
    positive = np.where(values > 0, values, np.inf)
    # Shards of one grid column differ in width by less than a factor of two.
    least = 0.5 * float(positive.min()) / ranks
    whole = np.full(len(choices.counts), np.inf)
    np.minimum.at(whole, choices.table_class, positive)
    usual = float((whole * choices.counts)[np.isfinite(whole)].sum()) / ranks
    ends = [least, *(share * usual for share in shares), highest * (1 + 1e-9)]
    parts = [
        np.geomspace(low, high, count, endpoint=False)
        for low, high, count in zip(ends, ends[1:], points, strict=False)
        if low < high
    ]
    return np.unique(np.concatenate([*parts, ends[-1:]]))


def _with_overlap(
    problem: DlrmProblem, linear: list[LinearTerm], highest: NDArray[np.float64]
) -> Iterator[LinearTerm]:
    """Determines which terms overlap: those that make no difference next to much longer ones."""
    for term in linear:
        others = [other for other in linear if other.slot == term.slot and other is not term]
        features = np.zeros((len(highest), 2))
        features[term.feature, 1] = highest[term.feature]
        alone_s = term.slope * highest[term.feature]
        for other in others:
            if other.slope > 0:
                features[other.feature] = 10.0 * alone_s / other.slope
        without_s, with_s = _balanced_s(problem, features)[term.slot]
        # The least launch, because latencies of added terms are not counted.
        launch_s = min([term.launch_s, *(other.launch_s for other in others)])
        overlaps = not others or with_s - without_s < 0.5 * alone_s
        yield replace(term, launch_s=launch_s, overlaps=overlaps)


def _layout_of(feature: int) -> int:
    """Returns the smallest layout in which exchanges depend on a feature as in all others."""
    group = feature // GROUP_BLOCK
    return 1 << group if feature < RANK_BLOCK_START else _EVERY_GROUP


def _balanced_s(
    problem: DlrmProblem, features: NDArray[np.float64], layout: int = _EVERY_GROUP
) -> NDArray[np.float64]:
    """Returns durations if every rank holds the same.

    Args:
        problem: Everything but the plan.
        features: Of every rank; shape `(features, points)`.
        layout: Exchange groups in use.

    Returns:
        Seconds, with those of steps; shape `(rows, points)`.
    """
    cluster = problem.cluster
    # All nodes are alike, so one stands for all.
    result, local = np.empty((ROWS, features.shape[1])), cluster.domain_size
    nodes = np.array([float(cluster.domain_count)])
    chunk = max(1, _CHUNK_ELEMENTS // local)
    for start in range(0, features.shape[1], chunk):
        part = features[:, start : start + chunk]
        everywhere = np.broadcast_to(part[:, None, :], (len(part), local, part.shape[1]))
        found = durations_and_steps_s(problem, layout, everywhere, nodes)
        result[:, start : start + chunk] = found[:, 0]
    return result
