"""Plans of one layout: graph of a rank, demands, and solution of the relaxation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dse.graph import StructureKey, predecessors, topological_order
from dse.workload.dlrm import NODE_SLOTS, ExchangeGroup, Slot
from dse.workload.dlrm.solver.bound._steps import task_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.workload.dlrm import LayoutGraph
    from dse.workload.dlrm.solver.bound._choices import Choices
    from dse.workload.dlrm.solver.bound._durations import Curve, Envelope, SlotModel

#: Exchanges between nodes of what is cut by rows over the ranks of a node.
BETWEEN_SLOTS = (Slot.NODE_EXCHANGE_BETWEEN, Slot.NODE_GRADIENTS_BETWEEN)

#: Graphs of one rank whose order is kept: those of all layouts of a few problems.
_KEPT = 64


@dataclass(frozen=True, slots=True)
class SlotGraph:
    """Plan-dependent tasks of one rank, and the longest constant paths between them.

    Only constants add up between two plan-dependent tasks, so a chain of constant tasks is one
    weight.

    Attributes:
        kind: `Slot` of each node, in topological order; shape `(nodes,)`.
        before_s: Longest constant time from the start of the iteration (column 0) and from the end
            of each node (column `1 + node`) to the start of each node; minus infinity without a
            direct path; shape `(nodes, 1 + nodes)`.
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


@lru_cache(maxsize=_KEPT)
def _ordered(structure: StructureKey) -> tuple[list[list[int]], list[int]]:
    """Returns what each task of one rank waits for, and the order of tasks."""
    return predecessors(structure.graph), topological_order(structure.graph)


def slot_graph(layout: LayoutGraph) -> SlotGraph:
    """Contracts the graph of one rank; with one member, its collectives are plain tasks."""
    graph = layout.graph
    kinds = dict(zip(layout.slot_task.tolist(), layout.slot_kind.tolist(), strict=True))
    count = len(kinds)
    waits, order = _ordered(StructureKey(graph))
    durations_s: list[float] = graph.duration_s.tolist()
    begin = np.full(1 + count, -np.inf)
    begin[0] = 0.0
    # Longest constant time from the start and from the end of every node to the end of each task.
    since: dict[int, NDArray[np.float64]] = {}
    kind, before = [], []
    for task in order:
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


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The solution of one layout.

    Attributes:
        value_s: No plan of the layout is faster.
        durations_s: Durations of the plan-dependent tasks there, and of steps; shape `(rows,)`.
        shares: Tables of its class that take each choice; shape `(choices,)`.
        features: What a rank holds on average; shape `(features,)`.
        envelopes: Envelopes of exchanges and steps, by row.
        most: The largest average of each feature.
        working: Share of ranks that work in groups which need not be on all of them.
    """

    value_s: float
    durations_s: NDArray[np.float64]
    shares: NDArray[np.float64]
    features: NDArray[np.float64]
    envelopes: dict[int, Envelope]
    most: dict[int, float]
    working: dict[ExchangeGroup, float]


@dataclass(frozen=True, slots=True)
class IndivisibleShard:
    """Lookups and updates that some rank has in any plan, in seconds without the launches.

    Attributes:
        label: Description for messages.
        group: The exchange group.
        lookup_s: Lookup of each choice, to be multiplied by its share; shape `(choices,)`.
        update_s: The same for the update.
        launch: Part of a launch of each choice; shape `(choices,)`.
        members: Classes of tables; `shared_s` applies only if all of them are in the group.
        shared_s: Least lookup, update, and both together, of the rank.
    """

    label: str
    group: ExchangeGroup
    lookup_s: NDArray[np.float64]
    update_s: NDArray[np.float64]
    launch: NDArray[np.float64]
    members: tuple[int, ...] = ()
    shared_s: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Missed:
    """How far a solution undercuts an exchange.

    Attributes:
        seconds: Seconds of the iteration.
        feature: Feature that the exchange depends on; -1 if nothing is undercut.
        value: Average of the feature at which to split the plans.
        at_bend: Whether that is where the duration bends, not where the solution is.
    """

    seconds: float
    feature: int
    value: float
    at_bend: bool


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans of a relaxation, and the demands on them so far.

    Attributes:
        choices: Choices of all tables.
        model: Lower bounds on durations.
        graph: One rank's iteration.
        cluster: The cluster.
        groups: Exchange groups in use; each holds at least one table.
        open: Remaining choices; shape `(choices,)`.
        least: The least average of each feature.
        caps: Upper limits on the averages of some features.
        looks: Values at which an envelope is included in the program, as shares of its range.
        alone: Tables that alone keep an exchange busy for longer than the averages.
        floors: Least durations of some exchanges, from a choice that some table takes or from the
            fullest rank; by slot. Of those that differ between nodes, on the fullest node.
        holders: Least and largest share of the ranks, or nodes, on which a partial group has
            shards with rows on all ranks of the node, by group; of others any share.
        limits: What no rank, or node, exchanges of a partial group, by group.
    """

    choices: Choices
    model: SlotModel
    graph: SlotGraph
    cluster: Cluster
    groups: tuple[ExchangeGroup, ...]
    open: NDArray[np.bool_]
    least: dict[int, float]
    caps: dict[int, float]
    looks: dict[int, set[float]]
    alone: dict[int, set[int]]
    floors: dict[int, float]
    holders: dict[ExchangeGroup, tuple[float, float]]
    limits: dict[ExchangeGroup, float]

    @property
    def slots(self) -> list[int]:
        """Plan-dependent tasks of this layout, and the steps of its exchanges."""
        tasks = {int(kind) for kind in self.graph.kind}
        steps = {curve.slot for curve in self.model.curves if curve.slot >= len(Slot)}
        return sorted(tasks | {step for step in steps if task_of(step) in tasks})

    @property
    def partial(self) -> list[ExchangeGroup]:
        """Groups in use whose shards may be on some of the ranks only."""
        several = self.cluster.domain_count > 1
        return [
            group
            for group in self.groups
            if group is ExchangeGroup.POOLED or (group is ExchangeGroup.NODE and several)
        ]

    @property
    def uneven(self) -> list[ExchangeGroup]:
        """Groups in use whose shards are on all ranks, where ranks may hold different blocks."""
        by_rows = {ExchangeGroup.ROW, ExchangeGroup.NODE}
        return [
            group
            for group in self.groups
            if group in by_rows.difference(self.partial)
            and self.choices.uneven[self.open & self.choices.inside(group)].any()
        ]

    @property
    def features(self) -> list[int]:
        """Placement features that matter in this layout."""
        slots = set(self.slots)
        terms = {term.feature for term in self.model.linear if term.slot in slots}
        return sorted(terms | {curve.feature for curve in self.curves})

    @property
    def curves(self) -> list[Curve]:
        """Exchanges of this layout."""
        slots = set(self.slots)
        return [curve for curve in self.model.curves if curve.slot in slots]

    def features_of(self, group: ExchangeGroup) -> list[int]:
        """Returns the features that matter for what is done by ranks with shards of a group."""
        kernels = (Slot.POOLED_LOOKUP + group, Slot.POOLED_UPDATE + group)
        found = {term.feature for term in self.model.linear if term.slot in kernels}
        if group is ExchangeGroup.NODE:
            exchanges = {*NODE_SLOTS, *BETWEEN_SLOTS}
            found |= {curve.feature for curve in self.curves if curve.slot in exchanges}
        return sorted(found)

    def holders_of(self, group: ExchangeGroup) -> tuple[float, float]:
        """Returns the least and largest share of the ranks, or nodes, that a group keeps busy."""
        if group in self.holders:
            return self.holders[group]
        inside = self.open & self.choices.inside(group)
        return (self.unit(group) if self.choices.full[inside].all() else 0.0, 1.0)

    def places(self, group: ExchangeGroup) -> int:
        """Returns how many ranks, or nodes, there are for shards of a partial group."""
        by_node = group is ExchangeGroup.NODE
        return self.cluster.domain_count if by_node else self.cluster.world_size

    def unit(self, group: ExchangeGroup) -> float:
        """Returns the least share of ranks that hold shards of a partial group."""
        return 1.0 / self.places(group)

    def times(self, slot: int) -> int:
        """Returns how often a task, or that of a step, is in one rank's iteration."""
        return int((self.graph.kind == task_of(slot)).sum())

    def by_node(self, slot: int) -> bool:
        """Whether the durations of an exchange differ between nodes."""
        return slot in NODE_SLOTS and self.cluster.domain_count > 1
