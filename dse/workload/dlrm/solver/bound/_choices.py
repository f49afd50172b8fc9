"""Choices of every table, reduced to what a bound needs.

An average does not depend on the choice of ranks, so a choice is a sharding type with a number of
column shards. Tables that differ only by name are one class.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.sharding import SAME_SHARDS, ShardingType, placements_allowed
from dse.workload.dlrm import ExchangeGroup, Slot
from dse.workload.dlrm.scoring._features import (
    GroupFeature,
    RankFeature,
    group_column,
    rank_column,
)
from dse.workload.dlrm.solver.bound._steps import ROWS, durations_and_steps_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.sharding import AllowedPlacement, ComputeKernel, PlanningRequest
    from dse.workload.dlrm import PlanScorer

#: Relative difference below which ranks have the same work.
_ROUNDING = 1e-9

#: Feature values that are expanded at once.
_CHUNK_ELEMENTS = 4_000_000

#: Nodes beyond which those that are alike are looked at once.
_MANY_NODES = 64


#: Shards of a choice whose sizes are looked at, the largest ones.
_MOST_SHARDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What the ranks of each choice hold.

    Attributes:
        total: Placement features, summed over the ranks; shape `(features, choices)`.
        busiest: Those of the rank that looks up and updates longest; shape `(features, choices)`.
        least: The least of each feature on any rank; shape `(features, choices)`.
        uneven: Whether its ranks hold different blocks of rows; shape `(choices,)`.
        active: Share of its ranks that have rows, and so lookups; shape `(choices,)`.
        node_input: Input of a rank, as the mean of the node that has most of it because of this
            table, or for tables over all ranks at least; shape `(choices,)`.
        alone_s: Durations of the plan-dependent tasks, and of their steps, with no other table, on
            the rank where they are longest; shape `(rows, choices)`.
        memory_bytes: Memory on all ranks together; shape `(choices,)`.
        sizes: What single ranks, or nodes of choices over a node or several, exchange of its
            shards, the largest first, then zeros; shape `(shards, choices)`.
    """

    total: NDArray[np.float64]
    busiest: NDArray[np.float64]
    least: NDArray[np.float64]
    uneven: NDArray[np.bool_]
    active: NDArray[np.float64]
    node_input: NDArray[np.float64]
    alone_s: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    sizes: NDArray[np.float64]

    def of(self, which: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Returns the attributes of some of the choices."""
        return {each.name: getattr(self, each.name)[..., which] for each in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices(_Held):
    """All choices of all classes of equal tables, with what their ranks hold.

    Attributes:
        names: Name of one table of each class.
        counts: Tables of each class; shape `(classes,)`.
        table_class: Class of each choice, ascending; shape `(choices,)`.
        groups: Exchange groups of each choice as bits of the layout; shape `(choices,)`.
        free_memory_bytes: Memory of one rank that is free for tables.
        class_of: Class of each table; shape `(tables,)`.
        cuts: Type, column shards, kernel and hot rows of each choice.
        alike: Equal for choices of a class with the same groups and hot rows; shape `(choices,)`.
    """

    names: tuple[str, ...]
    counts: NDArray[np.float64]
    table_class: NDArray[np.int64]
    groups: NDArray[np.int64]
    free_memory_bytes: float
    class_of: NDArray[np.int64]
    cuts: tuple[tuple[ShardingType, int, ComputeKernel, int], ...]
    alike: NDArray[np.int64]

    @property
    def full(self) -> NDArray[np.bool_]:
        """Which choices have rows on every rank that they are on; shape `(choices,)`."""
        return np.asarray(self.active == 1.0, dtype=np.bool_)

    def inside(self, group: ExchangeGroup) -> NDArray[np.bool_]:
        """Returns which choices have shards in an exchange group; shape `(choices,)`."""
        return np.asarray(self.groups >> group & 1, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class _Way:
    placement: AllowedPlacement
    ranks: tuple[int, ...]
    shards: int
    hot_rows: int


def table_choices(scorer: PlanScorer, request: PlanningRequest) -> Choices:
    """Returns the choices that a request allows.

    Choices that do not fit a rank even alone are excluded. If that leaves a table without choices,
    no plan fits, and memory is ignored.

    Args:
        scorer: The performance model of the problem.
        request: What may be placed where.
    """
    ways_of, class_of = _classes(request)
    options: list[int] = []
    owner: list[int] = []
    cuts: list[tuple[ShardingType, int, ComputeKernel, int]] = []
    for number, (first, ways) in enumerate(ways_of.items()):
        for way in ways:
            plan = way.placement.on(request.tables[first].name, way.ranks, way.hot_rows)
            options.append(scorer.placements.option(first, plan))
            owner.append(number)
            cuts.append((plan.sharding_type, way.shards, plan.compute_kernel, way.hot_rows))
    chosen = np.array(options, dtype=np.int64)[:, None]
    groups = scorer.placements.layouts(chosen)
    everywhere = np.array([kind is ShardingType.ROW_WISE for kind, *_ in cuts])
    held, most_memory_bytes = _held(scorer, chosen, everywhere)
    table_class = np.array(owner, dtype=np.int64)
    fixed = scorer.memory_bytes_without_tables
    free = scorer.problem.cluster.device.usable_memory_bytes - fixed
    fits = most_memory_bytes <= free
    if len(np.unique(table_class[fits])) < len(ways_of):
        fits[:], free = True, np.inf
    keys = np.column_stack((table_class, groups, [cut[3] for cut in cuts]))[fits]
    return Choices(
        names=tuple(request.tables[first].name for first in ways_of),
        counts=np.bincount(class_of).astype(np.float64),
        table_class=table_class[fits],
        groups=groups[fits],
        **held.of(fits),
        free_memory_bytes=free,
        class_of=class_of,
        cuts=tuple(cuts[index] for index in np.flatnonzero(fits).tolist()),
        alike=np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1),
    )


def _classes(
    request: PlanningRequest,
) -> tuple[dict[int, tuple[_Way, ...]], NDArray[np.int64]]:
    """Returns classes of tables that differ by name only.

    Returns:
        The ways to cut tables of each class, by its first table; the class of each table, by its
        place among these.
    """
    classes: dict[object, int] = {}
    known: dict[object, tuple[_Way, ...]] = {}
    ways_of: dict[int, tuple[_Way, ...]] = {}
    class_of = []
    for index, table in enumerate(request.tables):
        # What is allowed depends on the columns, on pooling, on the constraints that match the
        # table, and on hot rows, of which a table has fewer than rows.
        demands = tuple(rule.matches(table.name) for rule in request.constraints)
        hot_rows = request.hot_rows[index] if request.hot_rows else ()
        rows = table.rows if request.constraints else 0
        allowed = (table.dim, table.pooled, demands, hot_rows, rows)
        if allowed not in known:
            known[allowed] = tuple(_ways(index, request))
        found = classes.setdefault((replace(table, name=""), demands), len(ways_of))
        if found == len(ways_of):
            ways_of[index] = known[allowed]
        class_of.append(found)
    return ways_of, np.array(class_of, dtype=np.int64)


def _ways(table_index: int, request: PlanningRequest) -> Iterator[_Way]:
    """Yields the ways to cut a table, each set of shards once, spread as far as allowed."""
    seen = set()
    for placement in placements_allowed(table_index, request):
        sets = placement.rank_sets
        for shards in placement.column_shards:
            kind = SAME_SHARDS.get(placement.sharding_type, placement.sharding_type)
            if kind is ShardingType.COLUMN_WISE and shards == 1:
                kind = ShardingType.TABLE_WISE
            key = (kind, shards, placement.compute_kernel, placement.cached_share)
            if key in seen:
                continue
            seen.add(key)
            if kind in (ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL):
                ranks = sets[0]
            elif kind is ShardingType.TABLE_ROW_WISE:
                ranks = tuple(rank for ranks in sets[:shards] for rank in ranks)
            else:
                # Wherever they may be, they are received no faster than if spread over the nodes.
                ranks = tuple(_over_nodes(request.world_size, request.devices_per_node)[:shards])
            for hot_rows in placement.hot_rows:
                yield _Way(placement, ranks, shards, hot_rows)


def _over_nodes(ranks: int, per_node: int) -> list[int]:
    """Returns all ranks, neighbours in the list on different nodes."""
    return sorted(range(ranks), key=lambda rank: (rank % per_node, rank))


def _as_many_on_each_node(
    cluster: Cluster, ranks: NDArray[np.int64], shards: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Returns the shards that count where shards of different widths may be anywhere.

    With equal numbers on all nodes no other places are faster, and leaving shards out is none
    slower.

    Args:
        cluster: The cluster.
        ranks: Ranks to look at; shape `(ranks,)`.
        shards: How many ranks of the cluster hold a shard, the first ones in the order of
            :func:`_over_nodes`; shape `(options,)`.

    Returns:
        The ranks whose shards count; shape `(ranks, options)`.
    """
    nodes, local = cluster.domain_count, cluster.domain_size
    place = ranks % local * nodes + ranks // local
    return np.asarray(place[:, None] < np.where(shards > nodes, shards // nodes * nodes, shards))


def _held(
    scorer: PlanScorer, options: NDArray[np.int64], everywhere: NDArray[np.bool_]
) -> tuple[_Held, NDArray[np.float64]]:
    """Returns what the ranks of options hold, and the memory of the fullest; each is of one table.

    Args:
        scorer: The performance model of the problem.
        options: Option ids; shape `(options, 1)`.
        everywhere: Which of them have a block of rows on every rank; shape `(options,)`.
    """
    problem = scorer.problem
    cluster = problem.cluster
    groups = scorer.placements.layouts(options)
    width = len(scorer.placements.features(options[:1]))
    count = len(options)
    found = _Held(
        total=np.empty((width, count)),
        busiest=np.empty((width, count)),
        least=np.empty((width, count)),
        uneven=np.zeros(count, dtype=bool),
        active=np.empty(count),
        node_input=np.empty(count),
        alone_s=np.empty((ROWS, count)),
        memory_bytes=np.empty(count),
        sizes=np.zeros((min(_MOST_SHARDS, cluster.world_size), count)),
    )
    most_memory_bytes = np.empty(count)
    fixed = scorer.memory_bytes_without_tables
    received = rank_column(RankFeature.INPUT)
    folded = cluster.domain_count > _MANY_NODES
    chunk = 1 if folded else max(1, _CHUNK_ELEMENTS // (width * cluster.world_size))
    for layout in np.unique(groups).tolist():
        members = np.flatnonzero(groups == layout)
        # Copies of hot rows are in a second group, the last one.
        group = next(group for group in ExchangeGroup if layout >> group & 1)
        exchanged = group_column(group, GroupFeature.EXCHANGED)
        for start in range(0, len(members), chunk):
            part = members[start : start + chunk]
            if folded:
                option = int(options[part[0], 0])
                features, ranks, nodes = scorer.placements.features_by_node(option)
            else:
                features = scorer.placements.features(options[part])
                ranks = np.arange(cluster.world_size)
                nodes = np.ones(cluster.domain_count)
            # How many ranks each one stands for.
            alike = nodes.repeat(cluster.domain_size)
            found.total[:, part] = np.einsum("frc,r->fc", features, alike)
            found.least[:, part] = features.min(axis=1)
            memory_bytes = scorer.memory.total_bytes(features) - fixed
            found.memory_bytes[part] = alike @ memory_bytes
            most_memory_bytes[part] = memory_bytes.max(axis=0)
            reached = features[exchanged] > 0
            if group is ExchangeGroup.POOLED or group is ExchangeGroup.NODE:
                by_node = group is ExchangeGroup.NODE
                held = features[exchanged, :: cluster.domain_size if by_node else 1]
                held = held.repeat((nodes if by_node else alike).astype(int), axis=0)
                held = -np.sort(-held, axis=0)[:_MOST_SHARDS]
                found.sizes[: len(held), part] = held
            by_rank = features[received].copy()
            by_node = by_rank.reshape(-1, cluster.domain_size, len(part)).mean(axis=1)
            least = np.sort(by_rank.repeat(alike.astype(int), axis=0), axis=0)
            ascending = least[: cluster.domain_size].mean(axis=0)
            blocks = everywhere[part]
            # Equal tables of other names have their blocks on other ranks.
            found.node_input[part] = np.where(blocks, ascending, by_node.max(axis=0))
            for exchange in (received, exchanged):
                mean = alike @ features[exchange] / cluster.world_size
                features[exchange] = np.where(blocks, mean, features[exchange])
            if group is ExchangeGroup.POOLED and cluster.domain_count > 1:
                shards = (alike @ reached).astype(np.int64)
                kept = _as_many_on_each_node(cluster, ranks, shards) | blocks
                features[: group_column(ExchangeGroup.ROW, GroupFeature(0))] *= kept
                features[received] *= kept
            slots = durations_and_steps_s(problem, layout, features, nodes)
            # What a rank fetches ahead is no exchange of all ranks.
            slots[Slot.ROW_PREFETCH] = 0.0
            found.alone_s[:, part] = slots.max(axis=1)
            busy_s = slots[: Slot.INPUT_EXCHANGE].sum(axis=0)
            found.busiest[:, part] = features[:, busy_s.argmax(axis=0), np.arange(len(part))]
            work_s = slots[Slot.POOLED_LOOKUP + group] + slots[Slot.POOLED_UPDATE + group]
            lowest_s = work_s.min(axis=0, where=reached, initial=np.inf)
            found.uneven[part] = lowest_s < work_s.max(axis=0) * (1.0 - _ROUNDING)
            active = alike @ (reached & (work_s > 0))
            found.active[part] = active / np.maximum(1.0, alike @ reached)
    return found, most_memory_bytes
