"""The least bound over all layouts, and its refinement by deciding single tables.

Every plan belongs to one layout, and in it every table takes one of its choices. The plans of a
node are those of a layout in which some tables have decided; the least bound of nodes that hold
all plans bounds them all. The node with the least bound is refined again and again: first by what
it loads single ranks with, then by deciding the table whose choices the relaxation mixes most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import build_layout
from dse.workload.dlrm.solver._bound_graph import slot_graph
from dse.workload.dlrm.solver._bound_layout import LayoutRelaxation
from dse.workload.dlrm.solver._bound_pieces import indivisible_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.workload.dlrm import LayoutGraph, Problem
    from dse.workload.dlrm.solver._bound_options import Choices
    from dse.workload.dlrm.solver._bound_slots import SlotModel
    from dse.workload.dlrm.solver._bound_types import Relaxed

#: Choices of tables in all programs together that are solved beyond one of each layout, unless
#: said otherwise, and limits on the number of these programs.
_CHOICES_SOLVED = 60_000
_FEWEST_SOLVED, _MOST_SOLVED = 60, 100

#: Relative gain from which on a piece is named as a reason.
_NAMED_GAIN = 1e-4

#: Weight of what a mixed table is worth against an exchange: its pieces are hidden in part.
_CURVE_WEIGHT = 0.2

#: Share of the bound that telling plans apart is worth at least.
_LEAST_GAIN = 1e-3


@dataclass(frozen=True, slots=True)
class Node:
    """Some plans of one layout.

    Attributes:
        layout: One rank's graph.
        relaxation: Their relaxation.
        relaxed: Its solution so far.
        refined: Whether pieces of single ranks are in it.
        reason: Which of them matters, in words; may be empty.
    """

    layout: LayoutGraph
    relaxation: LayoutRelaxation
    relaxed: Relaxed
    refined: bool = False
    reason: str = ""


def least_node(
    problem: Problem,
    choices: Choices,
    model: SlotModel,
    enough_s: float,
    max_programs: int | None = None,
) -> Node | None:
    """Returns the node that is left with the least bound; None where no plan fits in any layout.

    Args:
        problem: Everything but the plan.
        choices: Choices of all tables.
        model: What tasks last at least.
        enough_s: Stops refining when the bound is above this.
        max_programs: Programs to solve beyond one of each layout; by the size of the problem when
            None.
    """
    if max_programs is None:
        by_size = _CHOICES_SOLVED // len(choices.group)
        max_programs = max(_FEWEST_SOLVED, min(_MOST_SOLVED, by_size))
    waiting: list[tuple[float, int, Node]] = []
    number = 0
    for node in layout_nodes(problem, choices, model, enough_s):
        heappush(waiting, (node.relaxed.value_s, number, node))
        number += 1
    solved = 0
    while waiting:
        value_s, _, node = heappop(waiting)
        if value_s >= enough_s or solved >= max_programs:
            return node
        if node.refined:
            parts = _parts(choices, node)
            if not parts:
                return node
            nodes = list(_solved(node, parts))
        else:
            nodes = [_refined(choices, model, node, problem.cluster.world_size)]
        solved += max(1, len(nodes))
        for refined in nodes:
            heappush(waiting, (refined.relaxed.value_s, number, refined))
            number += 1
        if not waiting:
            # Whatever this table decides, no plan fits.
            return node if choices.free_memory_bytes == np.inf else None
    return None


def layout_nodes(
    problem: Problem,
    choices: Choices,
    model: SlotModel,
    enough_s: float,
    *,
    every: bool = False,
) -> Iterator[Node]:
    """Yields all layouts that have plans that fit.

    Args:
        problem: Everything but the plan.
        choices: Choices of all tables.
        model: What tasks last at least.
        enough_s: Layouts with a bound above this are not refined.
        every: Whether to refine those behind the best one as well.
    """
    for layout in _layouts(np.unique(choices.group).tolist()):
        graph = build_layout(problem, layout, one_rank=True)
        relaxation = LayoutRelaxation.of(
            choices, model, slot_graph(graph), layout, problem.cluster
        )
        if not relaxation.possible:
            continue
        found = relaxation.solve(enough_s=enough_s)
        if found is not None:
            # The others need not be known better than that they are behind this one.
            if not every:
                enough_s = min(enough_s, found.value_s)
            yield Node(graph, relaxation, found)


def _layouts(groups: list[int]) -> list[int]:
    """Sets of exchange groups, few groups first: they tend to be the fastest."""
    sets = [0]
    for group in groups:
        sets += [layout | 1 << group for layout in sets]
    return sorted((layout for layout in sets if layout), key=lambda layout: layout.bit_count())


def _refined(choices: Choices, model: SlotModel, node: Node, ranks: int) -> Node:
    """Adds what single ranks have to hold."""
    found = node.relaxation.solve() or node.relaxed
    pieces = tuple(indivisible_pieces(choices, model, node.relaxation, found, ranks))
    tighter = node.relaxation.solve(pieces) if pieces else None
    reason = node.reason
    if tighter is not None and tighter.value_s > found.value_s:
        if tighter.value_s > found.value_s * (1.0 + _NAMED_GAIN):
            reason = max(pieces, key=lambda piece: node.relaxation.alone_s(piece, found)).label
        found = tighter
    return replace(node, relaxed=_not_below(found, node), refined=True, reason=reason)


def _parts(choices: Choices, node: Node) -> tuple[LayoutRelaxation, ...]:
    """Returns relaxations that hold all plans of a node, tighter together; none if not worth it.

    Either a table decides, or an exchange is told apart by the volume: its envelope over a shorter
    range is closer to it.
    """
    least_s = _LEAST_GAIN * node.relaxed.value_s
    single = choices.counts[choices.table_class] == 1
    mixture = np.minimum(node.relaxed.shares, 1.0 - node.relaxed.shares) * single
    worth_s = mixture * choices.alone_s.sum(axis=0)
    choice = int(np.argmax(worth_s))
    missed = node.relaxation.widest_envelope(node.relaxed)
    piece_s, slot, limit_s = node.relaxation.largest_piece(node.relaxed)
    if max(worth_s[choice], missed.seconds, piece_s) < least_s:
        return ()
    if piece_s >= max(least_s, missed.seconds):
        return node.relaxation.told_apart(slot, limit_s)
    at_bend = missed.at_bend and missed.seconds >= least_s
    if at_bend or missed.seconds > _CURVE_WEIGHT * worth_s[choice]:
        return node.relaxation.split(missed.feature, missed.value)
    table_class = int(choices.table_class[choice])
    mine = node.relaxation.open_choices & (choices.table_class == table_class)
    return tuple(
        node.relaxation.decided(table_class, other) for other in np.flatnonzero(mine).tolist()
    )


def _solved(node: Node, parts: tuple[LayoutRelaxation, ...]) -> Iterator[Node]:
    """Yields a node for each part that has plans that fit."""
    for relaxation in parts:
        found = relaxation.solve() if relaxation.possible else None
        if found is not None:
            yield replace(
                node, relaxation=relaxation, relaxed=_not_below(found, node), refined=False
            )


def _not_below(found: Relaxed, parent: Node) -> Relaxed:
    """Fewer plans and more demands cannot be faster."""
    return replace(found, value_s=max(found.value_s, parent.relaxed.value_s))
