"""Durations of plan-dependent tasks, and of the two steps of exchanges that have two.

In one step the rank that holds most decides how long it lasts, in the other one the node. A bound
on each is closer than one on both together, since a large shard need not be on a full node. So the
steps have rows of their own, after those of all tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import Slot, first_steps_s, slot_durations_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.dlrm import DlrmProblem

#: Rows of tasks and of their steps.
ROWS = 3 * len(Slot)


def steps_of(slot: int) -> tuple[int, int]:
    """Returns the rows of the steps of an exchange: inside nodes, and between them."""
    return len(Slot) + slot, 2 * len(Slot) + slot


def task_of(row: int) -> int:
    """Returns the `Slot` of a row."""
    return row % len(Slot)


def durations_and_steps_s(
    problem: DlrmProblem,
    layout: int,
    features: NDArray[np.float64],
    node_counts: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Returns durations of tasks and of steps.

    Args:
        problem: Everything but the plan.
        layout: Exchange groups in use.
        features: Shape `(features, ranks, candidates)`.
        node_counts: As of :func:`dse.workload.dlrm.slot_durations_s`.

    Returns:
        Seconds; shape `(rows, ranks, candidates)`; steps of exchanges in one step are zero.
    """
    lasts_s = slot_durations_s(problem, layout, features, node_counts)
    rows = np.zeros((ROWS, *lasts_s.shape[1:]))
    rows[: len(Slot)] = lasts_s
    if problem.software.hierarchical_exchange:
        first_s = first_steps_s(problem, layout, features)
        rows[len(Slot) : 2 * len(Slot)] = first_s
        rows[2 * len(Slot) :] = np.where(first_s > 0, lasts_s - first_s, 0.0)
    return rows
