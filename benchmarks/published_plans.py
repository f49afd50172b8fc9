"""Sharding plans that published training programs make for themselves.

Their rules are those of the programs; where the result does not fit the devices' memory, nobody
could have run it, and the caller looks for another plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import math
from typing import TYPE_CHECKING

from dse.machine import LinkKind
from dse.sharding import ShardingPlan, ShardingType, TablePlan

if TYPE_CHECKING:
    from dse.machine import Cluster
    from dse.model import DlrmModel, EmbeddingTable

#: DeepLearningExamples leaves the first GPU to the bottom MLP where there are more than these.
_SHARED_FIRST_GPU = 4

#: distributed-embeddings cuts tables by columns above this many values (its example's setting).
_COLUMN_SLICE_VALUES = 1280 * 2**20


#: HugeCTR's planner: bytes of a value with its Adagrad state, bytes that a device keeps for
#: tables, rounds of splitting, and the work of a shard's exchange over that of a lookup in bytes
#: (defaults of its arguments). Of devices below 80 GB the same share of memory is taken.
_HUGECTR_VALUE_BYTES, _HUGECTR_CAPACITY_BYTES, _HUGECTR_CAPACITY_SHARE = 8, 60e9, 0.75
_HUGECTR_ROUNDS, _HUGECTR_WORK_RATIO = 20, 4.0
_HUGECTR_RANKS_RATIO, _HUGECTR_NODES_RATIO = 7.0, 67.0

#: Most ranks of one NVLink domain to which tables are dealt one by one.
_DEALT_RANKS = 8


def first_gpu_free_plan(model: DlrmModel, world_size: int) -> ShardingPlan:
    """Returns DeepLearningExamples' plan: whole tables, as even in number as in size.

    Tables go by falling size to the emptiest rank that does not hold its share of tables yet.
    """
    first = 1 if world_size > _SHARED_FIRST_GPU else 0
    ranks = world_size - first
    most = math.ceil(len(model.tables) / ranks)
    rows, counts = [0] * ranks, [0] * ranks
    chosen: dict[str, int] = {}
    for table in sorted(model.tables, key=lambda table: -table.rows):
        open_ranks = [rank for rank in range(ranks) if counts[rank] < most]
        rank = min(open_ranks, key=rows.__getitem__)
        rows[rank] += table.rows
        counts[rank] += 1
        chosen[table.name] = rank + first
    return _whole_tables(model, world_size, chosen)


def one_rank_plan(model: DlrmModel) -> ShardingPlan:
    """Returns the plan of a program on one device."""
    return _whole_tables(model, 1, dict.fromkeys((table.name for table in model.tables), 0))


def memory_balanced_plan(model: DlrmModel, world_size: int) -> ShardingPlan:
    """Returns distributed-embeddings' memory-balanced plan.

    Tables above a size are cut by columns into a power of two of slices; slices are dealt out by
    falling size, back and forth over the ranks.
    """
    slices: list[tuple[int, str]] = []
    for table in model.tables:
        values, parts = table.rows * table.dim, 1
        while values / parts > _COLUMN_SLICE_VALUES:
            parts *= 2
        parts = min(parts, world_size, table.dim)
        slices += [(values // parts, table.name)] * parts
    slices.sort(key=lambda piece: -piece[0])
    ranks: dict[str, list[int]] = {}
    for index, (_, name) in enumerate(slices):
        place = index % (2 * world_size)
        rank = place if place < world_size else 2 * world_size - 1 - place
        held = ranks.setdefault(name, [])
        # Slices of a table that meet on a rank become one.
        if rank not in held:
            held.append(rank)
    return ShardingPlan(
        world_size,
        tuple(
            TablePlan(
                table.name,
                ShardingType.COLUMN_WISE
                if len(ranks[table.name]) > 1
                else ShardingType.TABLE_WISE,
                tuple(ranks[table.name]),
            )
            for table in model.tables
        ),
    )


def lookup_balanced_plan(
    model: DlrmModel, cluster: Cluster, copied_below_bytes: float
) -> ShardingPlan:
    """Returns the plan of HugeCTR's planner (`auto`, and `hier_auto` on several nodes).

    Small tables are copied to all ranks. The others go to the ranks, or to nodes with rows cut
    over all ranks of each, by falling lookups to the one with the least work,
    which is lookups and a constant for every shard that is exchanged. In each of 20 rounds the
    shard with the most lookups that can be is cut in two; the round with the least work of the
    busiest rank counts.

    Args:
        model: The model.
        cluster: The machines.
        copied_below_bytes: Tables whose weights and optimizer state take less are copied.
    """
    local = 1 if by_rank(cluster) else cluster.devices_per_node
    places = cluster.world_size // local
    device_bytes = _HUGECTR_CAPACITY_SHARE * cluster.device.memory_bytes
    capacity = min(_HUGECTR_CAPACITY_BYTES, device_bytes) * local
    copied = {table.name for table in model.tables if _bytes(table) < copied_below_bytes}
    dealt = [table for table in model.tables if table.name not in copied]
    capacity -= sum(_bytes(table) for table in model.tables if table.name in copied)
    shard_work = _memory_over_exchange(cluster) / _HUGECTR_WORK_RATIO
    parts = dict.fromkeys((table.name for table in dealt), 1)
    # Everything everywhere is where it starts from.
    best = sum(table.lookups_per_sample / places + shard_work for table in dealt)
    chosen = {table.name: tuple(range(places)) for table in dealt}
    for _ in range(_HUGECTR_ROUNDS):
        deal = _Deal(places, capacity, shard_work)
        lacking = deal.place(dealt, parts)
        if not lacking and max(deal.work) < best:
            best = max(deal.work)
            chosen = {name: tuple(sorted(held)) for name, held in deal.held.items()}
        by_lookups = sorted(dealt, key=lambda table: -table.lookups_per_sample / parts[table.name])
        names = [lacking] if lacking else [table.name for table in by_lookups]
        split = next((name for name in names if 2 * parts[name] <= places), "")
        if not split:
            break
        parts[split] *= 2
    return ShardingPlan(
        cluster.world_size,
        tuple(_hugectr_table(table, chosen.get(table.name), cluster) for table in model.tables),
    )


def by_rank(cluster: Cluster) -> bool:
    """Whether submissions deal tables out to ranks (`auto`), not to nodes (`hier_auto`).

    They do on one node, and on two of GB200 that NVLink joins.
    """
    return cluster.domain_count == 1 and cluster.world_size <= _DEALT_RANKS


def _hugectr_table(
    table: EmbeddingTable, places: tuple[int, ...] | None, cluster: Cluster
) -> TablePlan:
    """Returns the placement on ranks or on nodes; None copies the table."""
    if places is None:
        ranks = tuple(range(cluster.world_size))
        return TablePlan(table.name, ShardingType.DATA_PARALLEL, ranks)
    local = 1 if by_rank(cluster) else cluster.devices_per_node
    ranks = tuple(place * local + rank for place in places for rank in range(local))
    if cluster.domain_count > 1:
        return TablePlan(table.name, ShardingType.TABLE_ROW_WISE, ranks)
    kind = ShardingType.ROW_WISE if len(ranks) > 1 else ShardingType.TABLE_WISE
    return TablePlan(table.name, kind, ranks)


@dataclass
class _Deal:
    """One round of dealing shards out.

    Attributes:
        places: Ranks or domains.
        capacity: Bytes that each has for tables.
        shard_work: Work of a shard besides its lookups.
        work: Work of each so far.
        held: Places of each table so far.
    """

    places: int
    capacity: float
    shard_work: float
    work: list[float] = field(init=False)
    held: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.work = [0.0] * self.places

    def place(self, tables: list[EmbeddingTable], parts: dict[str, int]) -> str:
        """Deals out all shards; returns the table of one that fits nowhere, or nothing."""
        free = [self.capacity] * self.places
        shards = [table for table in tables for _ in range(parts[table.name])]
        shards.sort(key=lambda table: -table.lookups_per_sample / parts[table.name])
        for table in shards:
            count, held = parts[table.name], self.held.setdefault(table.name, [])
            needed = _bytes(table) / count
            fit = [p for p in range(self.places) if p not in held and free[p] >= needed]
            if not fit:
                return table.name
            place = min(fit, key=self.work.__getitem__)
            held.append(place)
            free[place] -= needed
            self.work[place] += table.lookups_per_sample / count + self.shard_work
        return ""


def _bytes(table: EmbeddingTable) -> float:
    return float(table.rows * table.dim * _HUGECTR_VALUE_BYTES)


def _memory_over_exchange(cluster: Cluster) -> float:
    """Bandwidth of device memory over that of the links, as configurations of submissions have it.

    They give 7 for H100, 9 for B200 and GB200, and 67 for H100 between nodes. Those of cards
    without NVLink between all, and of other nodes, are not known and taken for unchanged.
    """
    if not by_rank(cluster):
        return _HUGECTR_NODES_RATIO
    link = cluster.link
    if link.kind not in (LinkKind.NVSWITCH, LinkKind.FULL_MESH):
        return _HUGECTR_RANKS_RATIO
    return cluster.device.memory_bandwidth_bytes_per_s / link.bandwidth_bytes_per_s


def _whole_tables(model: DlrmModel, world_size: int, ranks: dict[str, int]) -> ShardingPlan:
    return ShardingPlan(
        world_size,
        tuple(
            TablePlan(table.name, ShardingType.TABLE_WISE, (ranks[table.name],))
            for table in model.tables
        ),
    )
