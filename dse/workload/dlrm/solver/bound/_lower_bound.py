"""Lower bound on the iteration time of every plan that a request allows.

The iteration on one rank is a longest path, so its length is a non-decreasing, convex function of
the durations on it, and the makespan is not below its average over ranks. Durations in turn are
bounded from below by convex functions of what a rank holds on average, which is linear in the
shares of tables that take each choice. That is a linear program for each layout (set of exchange
groups in use); the least of their values bounds all plans. Proofs are in docs/method.md, "Lower
bound".

The bound is refined by branch and bound. A node holds the plans of one layout that meet what has
been decided. The node with the least bound is refined again and again: first by what single ranks
must hold, then by splitting its plans where the relaxation undercuts them most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.simulate import critical_path, simulate
from dse.workload import DurationClass
from dse.workload.dlrm import Slot
from dse.workload.dlrm.solver.bound._indivisible import indivisible_shards
from dse.workload.dlrm.solver.bound._nodes import relaxed_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.sharding import PlanningRequest
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver.bound._choices import Choices
    from dse.workload.dlrm.solver.bound._durations import SlotModel
    from dse.workload.dlrm.solver.bound._layout import Relaxed
    from dse.workload.dlrm.solver.bound._nodes import Node, RelaxedProblem
    from dse.workload.dlrm.solver.bound._relaxation import LayoutRelaxation


#: Least share of the bound for a reason to be listed.
_MIN_REASON_SHARE = 0.02

_CLASS_WORDS = {
    DurationClass.DENSE: "dense compute",
    DurationClass.COMMUNICATION: "dense all-reduce",
    DurationClass.HOST: "launches by the host",
    DurationClass.COPY: "copies from the host",
    DurationClass.STORAGE: "reading from storage",
}


#: Default budget of table choices in all programs beyond one for each layout, and limits on the
#: number of these programs.
_CHOICES_SOLVED = 300_000

_FEWEST_SOLVED, _MOST_SOLVED = 100, 500

#: Programs in a row that do not raise the bound before it is left as it is, and the least rise.
_MOST_IN_VAIN = 80
_LEAST_RISE = 1e-4

#: Shards that some rank must hold in one program, the last ones.
_MOST_SHARDS = 10

#: Least relative gain for a shard to be named as a reason.
_NAMED_GAIN = 1e-4

#: Weight of a mixed table against an exchange: its shards are partly hidden. One split at a bend
#: replaces many.
_CURVE_WEIGHT, _BEND_WEIGHT = 0.2, 0.02

#: Least gain of a split, as a share of the bound.
_LEAST_GAIN = 1e-3


@dataclass(frozen=True, slots=True)
class LowerBound:
    """No allowed plan that fits has a shorter iteration.

    Attributes:
        iteration_time_s: The bound.
        reasons: What it consists of, the most important part first. A table that cannot be spread
            comes before all others if it raises the bound.
        fits: Whether some plan may fit the memory; if not, the bound is on plans that do not.
    """

    iteration_time_s: float
    reasons: tuple[str, ...]
    fits: bool = True

    def gap(self, iteration_time_s: float) -> float:
        """Returns how much slower than the best plan a plan can be, as a share of the bound."""
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
        request: Tables, ranks and what is allowed; plans are made of what
            :func:`dse.sharding.placements_allowed` returns.
        incumbent_s: Iteration time of the best plan known. The bound is not refined beyond it.
        max_programs: Linear programs to solve beyond one for each layout: more take longer and
            raise the bound. None chooses by the size of the problem, for a few seconds at most.

    Returns:
        The bound. If no plan fits the memory, it is a bound on plans that do not fit.

    Raises:
        ConfigError: Some table has no allowed placement, or tasks last longer than 1e20 s.
    """
    relaxed = relaxed_problem(scorer.problem, request)
    enough_s = np.inf if incumbent_s is None else incumbent_s
    node = least_node(relaxed, enough_s, max_programs)
    fits = node is not None and bool(np.isfinite(relaxed.choices.free_memory_bytes))
    if node is None:
        node = least_node(relaxed.without_memory_limit, enough_s, max_programs)
    if node is None:
        # Without a limit on memory there always is a plan: the numbers are too large.
        device = scorer.problem.cluster.device.name
        raise ConfigError(
            f"no lower bound can be computed on {device}: tasks last longer than the 1e20 s that "
            "linear programs take for infinite; look at its latencies and bandwidths"
        )
    return LowerBound(node.relaxed.value_s, _reasons(node), fits)


def _reasons(node: Node) -> tuple[str, ...]:
    """Returns what the critical path of the relaxation consists of."""
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


def least_node(
    relaxed: RelaxedProblem, enough_s: float, max_programs: int | None = None
) -> Node | None:
    """Returns the remaining node with the least bound; None if no plan fits in any layout.

    Args:
        relaxed: The layouts of the problem.
        enough_s: Stop refining when the bound exceeds this.
        max_programs: Programs to solve beyond one for each layout; None chooses by size.
    """
    choices = relaxed.choices
    if max_programs is None:
        by_size = _CHOICES_SOLVED // len(choices.groups)
        max_programs = max(_FEWEST_SOLVED, min(_MOST_SOLVED, by_size))
    waiting: list[tuple[float, int, Node]] = []
    number = 0
    for node in relaxed.nodes(enough_s):
        heappush(waiting, (node.relaxed.value_s, number, node))
        number += 1
    solved, risen, risen_s = 0, 0, 0.0
    while waiting:
        value_s, _, node = heappop(waiting)
        if value_s > risen_s * (1.0 + _LEAST_RISE):
            risen, risen_s = solved, value_s
        if value_s >= enough_s or solved >= max_programs or solved - risen > _MOST_IN_VAIN:
            return node
        if node.refined:
            parts = _parts(choices, node)
            if not parts:
                return node
            nodes = list(_solved(node, parts))
        else:
            ranks = relaxed.problem.cluster.world_size
            nodes = [_refined(choices, relaxed.model, node, ranks)]
        solved += max(1, len(nodes))
        for refined in nodes:
            heappush(waiting, (refined.relaxed.value_s, number, refined))
            number += 1
        if not waiting:
            # No plan fits, whatever this table decides.
            return node if choices.free_memory_bytes == np.inf else None
    return None


def _refined(choices: Choices, model: SlotModel, node: Node, ranks: int) -> Node:
    """Adds the shards that some rank must hold, beside those of the nodes it is a part of."""
    found = node.relaxed
    known = {(shard.label, shard.group, shard.shared_s) for shard in node.shards}
    added = tuple(
        shard
        for shard in indivisible_shards(choices, model, node.relaxation, found, ranks)
        if (shard.label, shard.group, shard.shared_s) not in known
    )
    if not added:
        return replace(node, refined=True)
    shards = (*node.shards, *added)[-_MOST_SHARDS:]
    tighter = node.relaxation.solve(shards)
    reason = node.reason
    if tighter is not None:
        if tighter.value_s > found.value_s * (1.0 + _NAMED_GAIN):
            reason = max(shards, key=lambda shard: node.relaxation.alone_s(shard, found)).label
        found = tighter
    return replace(
        node, relaxed=_not_below(found, node), shards=shards, refined=True, reason=reason
    )


def _parts(choices: Choices, node: Node) -> tuple[LayoutRelaxation, ...]:
    """Returns tighter relaxations that together hold all plans of a node; none if not worth it.

    A table decides, or the volume of an exchange is split, over a shorter range of which its
    envelope is tighter, or ranks that are idle, a largest shard or the fullest rank decide.
    """
    least_s = _LEAST_GAIN * node.relaxed.value_s
    single = choices.counts[choices.table_class] == 1
    mixture = np.minimum(node.relaxed.shares, 1.0 - node.relaxed.shares) * single
    worth_s = mixture * choices.alone_s[: len(Slot)].sum(axis=0)
    choice = int(np.argmax(worth_s))
    missed = node.relaxation.widest_envelope(node.relaxed)
    shard_s, slot, limit_s = node.relaxation.largest_shard(node.relaxed)
    idle_s, group = node.relaxation.idle(node.relaxed)
    full_s, full_group, full_limit = node.relaxation.fullest(node.relaxed)
    if max(worth_s[choice], missed.seconds, shard_s, idle_s, full_s) < least_s:
        return ()
    if full_s >= max(least_s, missed.seconds, shard_s, idle_s):
        return node.relaxation.split_by_fullest(full_group, full_limit)
    if idle_s >= max(least_s, missed.seconds, shard_s):
        return node.relaxation.split_by_holders(group)
    if shard_s >= max(least_s, missed.seconds):
        return node.relaxation.split_by_largest(slot, limit_s)
    weight = _BEND_WEIGHT if missed.at_bend else _CURVE_WEIGHT
    if missed.seconds >= max(least_s, weight * worth_s[choice]):
        return node.relaxation.split(missed.feature, missed.value)
    return node.relaxation.split_by_choice(int(choices.table_class[choice]), node.relaxed)


def _solved(node: Node, parts: tuple[LayoutRelaxation, ...]) -> Iterator[Node]:
    """Yields a node for each part with plans that fit."""
    for relaxation in parts:
        found = relaxation.solve(node.shards) if relaxation.possible else None
        if found is not None:
            yield replace(
                node, relaxation=relaxation, relaxed=_not_below(found, node), refined=False
            )


def _not_below(found: Relaxed, parent: Node) -> Relaxed:
    """Raises the value to the parent's: fewer plans with more demands cannot be faster."""
    return replace(found, value_s=max(found.value_s, parent.relaxed.value_s))
