"""Starts on several nodes: cuts that linear programs choose, balanced on two levels.

Which parts fill whole nodes is beyond the reach of changes of single tables, so programs that know
what can be dealt out evenly (:mod:`_relaxed_nodes`) choose the cuts, and parts are
placed on nodes first and on their ranks after (:mod:`dse.workload.dlrm.solver._levels`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm.solver._levels import QUICK_SCHEDULE, THOROUGH_SCHEDULE, Levels
from dse.workload.dlrm.solver._relaxed_nodes import Kind, NodeCuts

if TYPE_CHECKING:
    from dse.sharding import PlanningRequest
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver._catalogue import Catalogue, CutKey
    from dse.workload.dlrm.solver._construct import Constructor
    from dse.workload.dlrm.solver._steps import Found, Steps

#: Kinds of programs that are solved again without cuts that were too large, how often in a row
#: that may not help, and plans of them that are evened out thoroughly.
_REFINED_KINDS = 2
_MISSES = 3
_THOROUGH_STARTS = 3


def node_starts(
    scorer: PlanScorer,
    request: PlanningRequest,
    catalogue: Catalogue,
    constructor: Constructor,
    steps: Steps,
    first: Found,
) -> list[Found]:
    """Returns plans of the cuts that linear programs choose, the best one first.

    Args:
        scorer: The performance model.
        request: What may be placed where.
        catalogue: Cuts of every table.
        constructor: Places the parts of chosen cuts.
        steps: The search that the plans are for.
        first: A plan that they have to beat.
    """
    rng = np.random.default_rng([request.seed, 1])
    usable = scorer.problem.cluster.device.usable_memory_bytes
    cuts = NodeCuts(scorer, request, first.rank_by, steps.is_over)
    levels = Levels(catalogue, steps.evaluator, usable, steps.is_over)
    found: list[Found] = []

    def look_at(kind: Kind, left_out: set[CutKey]) -> Found | None:
        keys = None if steps.is_over() else cuts.cuts(kind, left_out)
        if keys is None:
            return None
        plan = constructor.placed(keys)
        plan = levels.nodes_evened(plan, steps.weights(plan), rng)
        plan = levels.ranks_evened(plan, steps.weights(plan), QUICK_SCHEDULE)
        found.append(steps.found(plan))
        return found[-1]

    coarsest = [(kind, start) for kind in cuts.kinds if (start := look_at(kind, set()))]
    coarsest.sort(key=lambda pair: pair[1].rank_by)
    for kind, coarse in coarsest[:_REFINED_KINDS]:
        best, last, misses = coarse, coarse, 0
        left_out: set[CutKey] = set()
        while misses < _MISSES:
            more = levels.too_large(last.plan, steps.weights(last.plan)) - left_out
            left_out |= more
            finer = look_at(kind, left_out) if more else None
            if finer is None:
                break
            misses = 0 if finer.rank_by < best.rank_by else misses + 1
            best, last = min(best, finer, key=lambda start: start.rank_by), finer
    for start in sorted(found, key=lambda start: start.rank_by)[:_THOROUGH_STARTS]:
        plan = levels.ranks_evened(start.plan, steps.weights(start.plan), THOROUGH_SCHEDULE)
        found.append(steps.found(plan))
    return sorted(found, key=lambda start: start.rank_by)
