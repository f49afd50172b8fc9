"""Choices of every table, reduced to what a bound needs.

An average does not depend on the choice of ranks, so a choice is a sharding type with a number of
column shards. Tables that differ only by name are one class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType, placements_allowed
from dse.workload.dlrm import ExchangeGroup, Slot, slot_durations_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.sharding import AllowedPlacement, ComputeKernel, PlanningRequest
    from dse.workload.dlrm import PlanScorer

#: Feature values that are expanded at once.
_CHUNK_ELEMENTS = 4_000_000


#: Types with the same shards on other ranks.
SAME_SHARDS = {
    ShardingType.TABLE_COLUMN_WISE: ShardingType.COLUMN_WISE,
    ShardingType.GRID_SHARD: ShardingType.TABLE_ROW_WISE,
}


@dataclass(frozen=True, slots=True)
class Choices:
    """All choices of all classes of equal tables.

    Attributes:
        names: Name of one table of each class.
        counts: Tables of each class; shape `(classes,)`.
        table_class: Class of each choice, ascending; shape `(choices,)`.
        groups: Exchange groups of each choice as bits of the layout; shape `(choices,)`.
        total: Placement features, summed over the ranks; shape `(features, choices)`.
        busiest: Those of the rank that looks up and updates longest; shape `(features, choices)`.
        alone_s: Durations of the plan-dependent tasks with no other table, on the rank where they
            are longest; shape `(slots, choices)`.
        memory_bytes: Memory on all ranks together; shape `(choices,)`.
        free_memory_bytes: Memory of one rank that is free for tables.
        class_of: Class of each table; shape `(tables,)`.
        cuts: Type, column shards, kernel and hot rows of each choice.
    """

    names: tuple[str, ...]
    counts: NDArray[np.float64]
    table_class: NDArray[np.int64]
    groups: NDArray[np.int64]
    total: NDArray[np.float64]
    busiest: NDArray[np.float64]
    alone_s: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    free_memory_bytes: float
    class_of: NDArray[np.int64]
    cuts: tuple[tuple[ShardingType, int, ComputeKernel, int], ...]

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
    classes: dict[object, int] = {}
    first: list[int] = []
    counts: list[int] = []
    class_of: list[int] = []
    ways: dict[object, tuple[_Way, ...]] = {}
    ways_of: list[tuple[_Way, ...]] = []
    for index, table in enumerate(request.tables):
        # What is allowed depends on the columns, on the constraints that match the table, and on
        # hot rows, of which a table has fewer than rows.
        demands = tuple(rule.matches(table.name) for rule in request.constraints)
        hot_rows = request.hot_rows[index] if request.hot_rows else ()
        allowed = (table.dim, demands, hot_rows, table.rows if request.constraints else 0)
        if allowed not in ways:
            ways[allowed] = tuple(_ways(index, request))
        found = classes.setdefault((replace(table, name=""), demands), len(first))
        if found == len(first):
            first.append(index)
            ways_of.append(ways[allowed])
            counts.append(0)
        counts[found] += 1
        class_of.append(found)
    options: list[int] = []
    owner: list[int] = []
    cuts: list[tuple[ShardingType, int, ComputeKernel, int]] = []
    for number, index in enumerate(first):
        for way in ways_of[number]:
            plan = way.placement.on(request.tables[index].name, way.ranks, way.hot_rows)
            options.append(scorer.placements.option(index, plan))
            owner.append(number)
            cuts.append((plan.sharding_type, way.shards, plan.compute_kernel, way.hot_rows))
    chosen = np.array(options, dtype=np.int64)[:, None]
    groups = scorer.placements.layouts(chosen)
    total, busiest, alone_s, memory, most = _sums(scorer, chosen)
    table_class = np.array(owner, dtype=np.int64)
    fixed = scorer.memory_bytes_without_tables
    free = scorer.problem.cluster.device.usable_memory_bytes - fixed
    fits = most <= free
    if len(np.unique(table_class[fits])) < len(first):
        fits[:], free = True, np.inf
    return Choices(
        names=tuple(request.tables[index].name for index in first),
        counts=np.array(counts, dtype=np.float64),
        table_class=table_class[fits],
        groups=groups[fits],
        total=total[:, fits],
        busiest=busiest[:, fits],
        alone_s=alone_s[:, fits],
        memory_bytes=memory[fits],
        free_memory_bytes=free,
        class_of=np.array(class_of, dtype=np.int64),
        cuts=tuple(cuts[index] for index in np.flatnonzero(fits).tolist()),
    )


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
                ranks = max(sets, key=len)[:shards]
            for hot_rows in placement.hot_rows:
                yield _Way(placement, ranks, shards, hot_rows)


def _sums(scorer: PlanScorer, options: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
    """Returns features (sum, busiest rank), durations, and memory (sum, largest) of options."""
    problem = scorer.problem
    groups = scorer.placements.layouts(options)
    probe = scorer.placements.features(options[:1])
    count = len(options)
    total, busiest = np.empty((len(probe), count)), np.empty((len(probe), count))
    memory, most = np.empty(count), np.empty(count)
    alone_s = np.empty((len(Slot), count))
    fixed = scorer.memory_bytes_without_tables
    chunk = max(1, _CHUNK_ELEMENTS // (len(probe) * problem.cluster.world_size))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        for start in range(0, len(members), chunk):
            part = members[start : start + chunk]
            features = scorer.placements.features(options[part])
            total[:, part] = features.sum(axis=1)
            slots = slot_durations_s(problem, int(group), features)
            alone_s[:, part] = slots.max(axis=1)
            rank = slots[: Slot.INPUT_EXCHANGE].sum(axis=0).argmax(axis=0)
            busiest[:, part] = features[:, rank, np.arange(len(part))]
            held = scorer.memory.total_bytes(features) - fixed
            memory[part], most[part] = held.sum(axis=0), held.max(axis=0)
    return total, busiest, alone_s, memory, most
