"""One rank's iteration as a small graph over its plan-dependent tasks.

Between two plan-dependent tasks only constants add up, so every chain of constant tasks becomes
one weight: the longest. What is left has a node for each plan-dependent task of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.graph import predecessors, topological_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.dlrm import LayoutGraph


@dataclass(frozen=True, slots=True)
class SlotGraph:
    """Longest constant ways between the plan-dependent tasks of one rank.

    Attributes:
        kind: `Slot` of each node, in topological order; shape `(nodes,)`.
        before_s: Longest constant time from the start of the iteration (column 0) and from the end
            of each node (column `1 + node`) to the start of each node; minus infinity where there
            is no way without another node; shape `(nodes, 1 + nodes)`.
        after_s: The same to the end of the iteration; shape `(1 + nodes,)`.
    """

    kind: NDArray[np.int64]
    before_s: NDArray[np.float64]
    after_s: NDArray[np.float64]

    def makespan_s(self, durations_s: NDArray[np.float64]) -> float:
        """Returns the end of the last task.

        Args:
            durations_s: Duration of each `Slot`; shape `(slots,)`.
        """
        ends = np.full(1 + len(self.kind), -np.inf)
        ends[0] = 0.0
        for node, kind in enumerate(self.kind):
            ends[1 + node] = (self.before_s[node] + ends).max() + durations_s[kind]
        return float((self.after_s + ends).max())


def slot_graph(layout: LayoutGraph) -> SlotGraph:
    """Contracts the graph of one rank; its meetings have one member, so they are plain tasks."""
    graph = layout.graph
    kinds = dict(zip(layout.slot_task.tolist(), layout.slot_kind.tolist(), strict=True))
    count = len(kinds)
    waits = predecessors(graph)
    durations_s: list[float] = graph.duration_s.tolist()
    begin = np.full(1 + count, -np.inf)
    begin[0] = 0.0
    # Longest constant time from the start and from the end of every node to the end of each task.
    since: dict[int, NDArray[np.float64]] = {}
    kind, before = [], []
    for task in topological_order(graph):
        ready = np.maximum.reduce([since[other] for other in waits[task]] or [begin])
        if task in kinds:
            kind.append(kinds[task])
            before.append(ready)
            ended = np.full(1 + count, -np.inf)
            ended[len(kind)] = 0.0
            since[task] = ended
        else:
            since[task] = ready + durations_s[task]
    return SlotGraph(
        kind=np.array(kind, dtype=np.int64),
        before_s=np.array(before).reshape(count, 1 + count),
        after_s=np.maximum.reduce([*since.values()]),
    )
