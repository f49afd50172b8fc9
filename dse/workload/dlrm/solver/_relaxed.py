"""Cuts of all tables from the relaxation that bounds plans: a start that knows of layouts.

A search that changes one table after the other rarely opens an exchange group that pays only once
several tables are in it. The linear program of a layout decides all of them at once. It leaves few
tables undecided; these take the choice with the largest share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import Slot
from dse.workload.dlrm.solver._bound_branch import layout_nodes
from dse.workload.dlrm.solver._bound_options import choices_of
from dse.workload.dlrm.solver._bound_slots import slot_model
from dse.workload.dlrm.solver._catalogue import CutKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dse.sharding import PlanningRequest
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver._bound_options import Choices
    from dse.workload.dlrm.solver._bound_types import Relaxed

#: Most layouts whose solutions are rounded.
_LAYOUTS = 4

#: Share of the average time in lookups and updates beyond which a part of a table is too large for
#: the other parts to be dealt out evenly around it.
_COARSE_SHARE = 1.0

#: Relative change of a bound below which two layouts are the same under another name.
_SAME_BOUND = 1e-9


def relaxed_cuts(
    scorer: PlanScorer,
    request: PlanningRequest,
    incumbent_s: float,
    stop: Callable[[], bool] = lambda: False,
) -> list[tuple[CutKey, ...]]:
    """Returns the rounded solutions of the layouts with the least bounds, the least first.

    Args:
        scorer: The performance model.
        request: What may be placed where.
        incumbent_s: Iteration time of a known plan; layouts that cannot be faster are left out.
        stop: Says when time is over: layouts that are left then are not looked at.

    Returns:
        Cuts of all tables, by table, for each layout.
    """
    if stop():
        return []
    choices = choices_of(scorer, request)
    if not np.isfinite(choices.free_memory_bytes):
        return []
    model = slot_model(scorer.problem, choices)
    found = []
    for node in layout_nodes(scorer.problem, choices, model, incumbent_s, every=True):
        if stop():
            break
        found.append(node)
    found.sort(key=lambda node: node.relaxed.value_s)
    made: dict[tuple[CutKey, ...], None] = {}
    last_s, layouts = 0.0, 0
    for node in found:
        relaxed = node.relaxed
        if layouts == _LAYOUTS or relaxed.value_s >= incumbent_s or stop():
            break
        if relaxed.value_s > last_s * (1.0 + _SAME_BOUND):
            made[rounded(choices, relaxed.shares)] = None
            layouts += 1
            coarse = _coarse(choices, relaxed)
            if (coarse & (relaxed.shares > 0)).any():
                finer = node.relaxation.without(coarse).solve(enough_s=incumbent_s)
                if finer is not None:
                    made[rounded(choices, finer.shares)] = None
        last_s = relaxed.value_s
    return list(made)


def _coarse(choices: Choices, relaxed: Relaxed) -> NDArray[np.bool_]:
    """Says which choices keep a rank busy for longer than the solution allows it on average."""
    kernels = slice(Slot.POOLED_LOOKUP, Slot.INPUT_EXCHANGE)
    alone_s = choices.alone_s[kernels].sum(axis=0)
    average_s = float(relaxed.durations_s[kernels].sum())
    return np.asarray(alone_s > _COARSE_SHARE * average_s)


def rounded(choices: Choices, shares: NDArray[np.float64]) -> tuple[CutKey, ...]:
    """Returns a cut for each table: of a class, as many tables take a choice as its share says.

    Args:
        choices: Choices of all classes of tables.
        shares: Tables of its class that take each choice; shape `(choices,)`.
    """
    keys: dict[int, CutKey] = {}
    for number in range(len(choices.counts)):
        offered = np.flatnonzero(choices.table_class == number)
        members = np.flatnonzero(choices.class_of == number).tolist()
        taken = np.zeros(len(offered))
        for table in members:
            # The choice that is furthest behind its share; the first one of equal ones.
            chosen = int(np.argmax(np.round(shares[offered] - taken, 9)))
            taken[chosen] += 1.0
            kind, parts, kernel = choices.cuts[int(offered[chosen])]
            keys[table] = CutKey(table, kind, parts, kernel)
    return tuple(keys[table] for table in range(len(keys)))
