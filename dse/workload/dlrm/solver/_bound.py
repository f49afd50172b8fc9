"""A lower bound on the iteration time of every plan that a request allows.

The iteration on one rank is a longest path, so its length is a non-decreasing, convex function of
the durations on it, and the makespan is not below its average over ranks. Durations in turn are
bounded from below by convex functions of what a rank holds on average, which is linear in the
shares of tables that take each choice. That is a linear program for each set of exchange groups in
use; the least of their values bounds all plans. Proofs are in docs/method.md, "Lower bound".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dse.simulate import critical_path, simulate
from dse.workload.dlrm import DurationClass
from dse.workload.dlrm.solver._bound_branch import least_node
from dse.workload.dlrm.solver._bound_options import choices_of
from dse.workload.dlrm.solver._bound_slots import slot_model

if TYPE_CHECKING:
    from dse.sharding import PlanningRequest
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver._bound_branch import Node

#: Share of the bound that an argument decides at least, to be named.
_MIN_REASON_SHARE = 0.02

_CLASS_WORDS = {
    DurationClass.DENSE: "dense compute",
    DurationClass.COMMUNICATION: "dense all-reduce",
    DurationClass.HOST: "launches by the host",
    DurationClass.COPY: "copies from the host",
}


@dataclass(frozen=True, slots=True)
class LowerBound:
    """No allowed plan that fits has a shorter iteration.

    Attributes:
        iteration_time_s: The bound.
        reasons: What it consists of, the most important part first, in words. Where a table that
            cannot be spread raises it, that comes before all others.
    """

    iteration_time_s: float
    reasons: tuple[str, ...]

    def gap(self, iteration_time_s: float) -> float:
        """Returns by how much a plan can be above the best one, as a share of the bound."""
        return max(0.0, iteration_time_s / self.iteration_time_s - 1.0)


def lower_bound(
    scorer: PlanScorer,
    request: PlanningRequest,
    *,
    incumbent_s: float | None = None,
    max_programs: int | None = None,
) -> LowerBound:
    """Bounds the iteration time of every plan from below.

    Args:
        scorer: The performance model of the problem.
        request: Tables, ranks and what is allowed; plans are those that
            :func:`dse.sharding.placements_allowed` makes up.
        incumbent_s: Iteration time of the best plan known. The bound is not refined beyond it.
        max_programs: Linear programs to solve beyond one for each set of exchange groups: more
            take longer and raise the bound. By the size of the problem when None, some seconds at
            most.

    Returns:
        The bound. Where no plan fits the memory, of plans that do not.

    Raises:
        ConfigError: Some table may be placed nowhere.
    """
    choices = choices_of(scorer, request)
    model = slot_model(scorer.problem, choices)
    enough_s = np.inf if incumbent_s is None else incumbent_s
    node = least_node(scorer.problem, choices, model, enough_s, max_programs)
    if node is None:
        unlimited = replace(choices, free_memory_bytes=np.inf)
        node = least_node(scorer.problem, unlimited, model, enough_s, max_programs)
    if node is None:
        raise AssertionError("plans without a limit on memory are never impossible")
    return LowerBound(node.relaxed.value_s, _reasons(node))


def _reasons(node: Node) -> tuple[str, ...]:
    """Says what the critical path of the relaxation consists of."""
    layout, durations_s = node.layout, node.relaxed.durations_s
    filled = layout.graph.duration_s.copy()
    filled[layout.slot_task] = durations_s[layout.slot_kind]
    path = critical_path(simulate(layout.graph, filled))
    slot_of = dict(zip(layout.slot_task.tolist(), layout.slot_kind.tolist(), strict=True))
    seconds: dict[str, float] = {}
    for task, lasts_s in zip(path.tasks.tolist(), path.seconds.tolist(), strict=True):
        if task in slot_of:
            words = layout.graph.names[task]
            if layout.duration_class[task] == DurationClass.EMBEDDING:
                words = f"average {words} of all ranks"
        else:
            words = _CLASS_WORDS[DurationClass(int(layout.duration_class[task]))]
        seconds[words] = seconds.get(words, 0.0) + lasts_s
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    total_s = max(path.length_s, 1e-300)
    parts = [
        f"{words} ({lasts_s / total_s:.0%})"
        for words, lasts_s in ranked
        if lasts_s >= _MIN_REASON_SHARE * total_s
    ]
    return (node.reason, *parts) if node.reason else tuple(parts)
