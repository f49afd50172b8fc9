"""Finding and naming one shortest cycle among tasks that wait for each other."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.graph._graph import ExecutionGraph

_MAX_SHOWN = 12


class _Wait(NamedTuple):
    """`task` of one node waits for `other` of another node (or of the same one)."""

    task: int
    other: int


def describe_shortest_cycle(
    graph: ExecutionGraph, waits: list[list[int]], stuck: Iterable[int]
) -> str:
    """Names the tasks of one shortest cycle, a collective counting as one node.

    Args:
        graph: The graph.
        waits: Predecessors of every task.
        stuck: Tasks that can never start; at least one cycle lies among them.

    Returns:
        One line with who waits for whom and what to look at.
    """
    node_of = _contract(graph, stuck)
    edges: dict[int, dict[int, _Wait]] = {node: {} for node in node_of.values()}
    for task, node in node_of.items():
        for other in waits[task]:
            if other in node_of:
                edges[node].setdefault(node_of[other], _Wait(task, other))
    return _sentence(graph, _shortest_cycle(_trim(edges)))


def _contract(graph: ExecutionGraph, stuck: Iterable[int]) -> dict[int, int]:
    """Gives each stuck task its node: the first stuck member of its collective, or itself."""
    first_member: dict[int, int] = {}
    collective = graph.collective.tolist()
    return {
        task: first_member.setdefault(collective[task], task) if collective[task] >= 0 else task
        for task in stuck
    }


def _trim(edges: dict[int, dict[int, _Wait]]) -> dict[int, dict[int, _Wait]]:
    """Drops nodes that nothing waits for until none is left: they lie on no cycle."""
    waiting = dict.fromkeys(edges, 0)
    for targets in edges.values():
        for target in targets:
            waiting[target] += 1
    unneeded = [node for node, count in waiting.items() if count == 0]
    kept = dict(edges)
    while unneeded:
        for target in kept.pop(unneeded.pop()):
            waiting[target] -= 1
            if waiting[target] == 0:
                unneeded.append(target)
    return kept


def _shortest_cycle(edges: dict[int, dict[int, _Wait]]) -> list[_Wait]:
    """Breadth-first search from every node that some wait leads *up* to.

    Following waits usually leads to lower numbers; every cycle must lead up at least once. So only
    the targets of such waits have to be tried, and each search stops at the best length so far.
    """
    targets = sorted(
        {target for node, waits in edges.items() for target in waits if target >= node}
    )
    best: list[_Wait] = []
    for target in targets:
        found = _cycle_through(edges, target, len(best))
        if found:
            best = found
            if len(best) == 1:
                break
    return best


def _cycle_through(
    edges: dict[int, dict[int, _Wait]], origin: int, shorter_than: int
) -> list[_Wait]:
    """Returns a shortest cycle through a node; empty when none is shorter than a positive limit.

    The waits come in order: the next one starts in the node where the last one leads to.
    """
    came_by: dict[int, tuple[int, _Wait]] = {}
    queue = deque([(origin, 1)])
    while queue:
        node, length = queue.popleft()
        if shorter_than and length >= shorter_than:
            return []
        for target, wait in edges[node].items():
            if target == origin:
                path = [wait]
                while node != origin:
                    node, earlier = came_by[node]
                    path.append(earlier)
                return path[::-1]
            if target not in came_by:
                came_by[target] = (node, wait)
                queue.append((target, length + 1))
    return []


def _sentence(graph: ExecutionGraph, cycle: list[_Wait]) -> str:
    def named(task: int) -> str:
        stream = graph.streams[graph.stream[task]]
        return f"`{graph.names[task]}` (rank {stream.rank}, {stream.name})"

    following = [*cycle[1:], cycle[0]]
    parts = []
    for wait, after in list(zip(cycle, following, strict=True))[:_MAX_SHOWN]:
        part = f"{named(wait.task)} waits for {named(wait.other)}"
        if wait.other != after.task:
            part += f", which is in one collective with {named(after.task)}"
        parts.append(part)
    hidden = len(cycle) - len(parts)
    more = f"; and {hidden} more waits" if hidden else ""
    joined = any(wait.other != after.task for wait, after in zip(cycle, following, strict=True))
    step = (
        "issue the collectives in the same order on all streams"
        if joined
        else "remove one of these dependencies or change the order on the stream"
    )
    return f"the tasks wait for each other: {'; '.join(parts)}{more}; {step}"
