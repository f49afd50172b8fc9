"""Layouts of a problem, relaxed: what the bound refines, and what starts are rounded from.

A thorough search looks at the layouts of its problem twice, and the bound on all plans once more.
What they share is computed once: choices, durations, graphs, and programs with equal demands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import ExchangeGroup, PlanScorer, build_layout
from dse.workload.dlrm.solver.bound._choices import table_choices
from dse.workload.dlrm.solver.bound._durations import slot_model
from dse.workload.dlrm.solver.bound._layout import slot_graph
from dse.workload.dlrm.solver.bound._relaxation import LayoutRelaxation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.sharding import PlanningRequest
    from dse.workload.dlrm import DlrmProblem, LayoutGraph
    from dse.workload.dlrm.solver.bound._choices import Choices
    from dse.workload.dlrm.solver.bound._durations import SlotModel
    from dse.workload.dlrm.solver.bound._layout import IndivisibleShard, Relaxed, SlotGraph

#: Relaxed problems that are kept, the last ones: that of a search, which may be looked at without
#: and with hot rows, and the same with less memory.
_PROBLEMS_KEPT = 4


@dataclass(frozen=True, slots=True)
class Node:
    """Some plans of one layout.

    Attributes:
        layout: One rank's graph.
        relaxation: Their relaxation.
        relaxed: Its solution so far.
        shards: Shards that some rank must hold, which it includes.
        refined: Whether these are all that matter there.
        reason: The shard that matters most; may be empty.
    """

    layout: LayoutGraph
    relaxation: LayoutRelaxation
    relaxed: Relaxed
    shards: tuple[IndivisibleShard, ...] = ()
    refined: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A layout with plans that fit.

    Attributes:
        number: Exchange groups in use as bits.
        graph: One rank's graph.
        slots: The same for programs.
        first: Solution of the program without refinements.
    """

    number: int
    graph: LayoutGraph
    slots: SlotGraph
    first: Relaxed


class RelaxedProblem:
    """All layouts of one problem, relaxed on first use.

    Args:
        problem: Everything but the plan.
        choices: Choices of all tables.

    Attributes:
        problem: As given.
        choices: As given.
    """

    def __init__(self, problem: DlrmProblem, choices: Choices) -> None:
        self.problem = problem
        self.choices = choices
        self._known: dict[int, _Layout | None] = {}
        self._every: tuple[float, tuple[Node, ...]] | None = None

    @cached_property
    def model(self) -> SlotModel:
        """Lower bounds on the durations of plan-dependent tasks."""
        return slot_model(self.problem, self.choices)

    @cached_property
    def without_memory_limit(self) -> RelaxedProblem:
        """The same problem on devices with any memory."""
        unlimited = replace(self.choices, free_memory_bytes=np.inf)
        found = RelaxedProblem(self.problem, unlimited)
        found.model = self.model
        return found

    def nodes(self, enough_s: float) -> Iterator[Node]:
        """Yields the layouts with plans that fit, the best one first.

        Of layouts behind the best one it is enough to know that they are.

        Args:
            enough_s: Layouts with a bound above this are not refined.
        """
        found = [layout for layout in map(self._layout, self._numbers) if layout is not None]
        for layout in sorted(found, key=lambda layout: layout.first.value_s):
            node = self._node(layout)
            refined = node.relaxation.solve(enough_s=enough_s, coarse=layout.first)
            if refined is not None:
                enough_s = min(enough_s, refined.value_s)
                yield replace(node, relaxed=refined)

    def every_node(
        self, enough_s: float = np.inf, stop: Callable[[], bool] = lambda: False
    ) -> list[Node]:
        """Returns the layouts with plans that fit, also those behind the best one refined.

        Args:
            enough_s: Layouts with a bound above this are not refined.
            stop: Returns whether time is over; remaining layouts are then left out.
        """
        if self._every is None or self._every[0] != enough_s:
            found: list[Node] = []
            for layout in map(self._layout, self._numbers):
                if layout is None:
                    continue
                node = self._node(layout)
                refined = node.relaxation.solve(enough_s=enough_s, coarse=layout.first)
                if stop():
                    return found
                if refined is not None:
                    found.append(replace(node, relaxed=refined))
            self._every = (enough_s, tuple(found))
        # What a caller solves adds to what its relaxations look at.
        return [replace(node, relaxation=node.relaxation.copy()) for node in self._every[1]]

    def _node(self, layout: _Layout) -> Node:
        return Node(layout.graph, self._relaxation(layout.slots, layout.number), layout.first)

    def _relaxation(self, slots: SlotGraph, number: int) -> LayoutRelaxation:
        cluster = self.problem.cluster
        return LayoutRelaxation.of(self.choices, self.model, slots, number, cluster)

    @cached_property
    def _numbers(self) -> list[int]:
        """Sets of exchange groups as bits, small ones first."""
        sets = [0]
        for group in ExchangeGroup:
            if self.choices.inside(group).any():
                sets += [layout | 1 << group for layout in sets]
        return sorted((layout for layout in sets if layout), key=int.bit_count)

    def _layout(self, number: int) -> _Layout | None:
        """Returns a layout; None if no plan of it fits."""
        if number not in self._known:
            graph = build_layout(self.problem, number, one_rank=True)
            slots = slot_graph(graph)
            relaxation = self._relaxation(slots, number)
            first = relaxation.solve(enough_s=0.0) if relaxation.possible else None
            self._known[number] = None if first is None else _Layout(number, graph, slots, first)
        return self._known[number]


def relaxed_problem(problem: DlrmProblem, request: PlanningRequest) -> RelaxedProblem:
    """Returns the relaxed layouts of a problem, the same ones for the same arguments.

    Args:
        problem: Everything but the plan.
        request: What may be placed where; its seed makes no difference.
    """
    return _relaxed_problem(problem, replace(request, seed=0))


@lru_cache(maxsize=_PROBLEMS_KEPT)
def _relaxed_problem(problem: DlrmProblem, request: PlanningRequest) -> RelaxedProblem:
    # A scorer of its own, so that nothing depends on what was scored before.
    return RelaxedProblem(problem, table_choices(PlanScorer(problem), request))
