"""Planning requests, constraints on tables, and the placements they allow."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.sharding._plan import ComputeKernel, ShardingType, TablePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.model import EmbeddingTable, Optimizer


@dataclass(frozen=True, slots=True)
class TableConstraints:
    """Constraints on the tables whose name matches a pattern; None means no constraint.

    Attributes:
        tables: Name of a table, or a shell pattern such as `cat_*`.
        allowed_types: Sharding types that may be used.
        allowed_kernels: Compute kernels that may be used; naming `fused_uvm` or
            `fused_uvm_caching` allows it, whatever the request says.
        pinned_ranks: The only ranks that may hold a shard.
        min_partition: Fewest columns of a column shard.
        max_partitions: Most column shards.
        cache_load_factor: Share of rows that `fused_uvm_caching` keeps on the device.
        hot_rows: Numbers of hot rows that may be used, 0 for none; naming one allows it, whatever
            the request says. A table that has no more rows than that keeps none.
        origin: Where the constraint was written, for messages.
    """

    tables: str = "*"
    allowed_types: frozenset[ShardingType] | None = None
    allowed_kernels: frozenset[ComputeKernel] | None = None
    pinned_ranks: frozenset[int] | None = None
    min_partition: int | None = None
    max_partitions: int | None = None
    cache_load_factor: float | None = None
    hot_rows: frozenset[int] | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        """Checks what would have no meaning.

        Raises:
            ConfigError: A number is not possible.
        """
        for name in ("min_partition", "max_partitions"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise ConfigError(f"{self._shown}: {name} {value}; expected at least 1")
        share = self.cache_load_factor
        if share is not None and not 0 < share <= 1:
            raise ConfigError(
                f"{self._shown}: cache_load_factor {share}; expected above 0 and at most 1"
            )

    @property
    def _shown(self) -> str:
        return self.origin or f"constraints of `{self.tables}`"

    @property
    def allows_host(self) -> bool:
        """Whether the constraint itself allows tables in host memory."""
        return any(kernel.on_host for kernel in self.allowed_kernels or ())

    def matches(self, table: str) -> bool:
        """Returns whether the constraint applies to a table of that name."""
        return fnmatchcase(table, self.tables)


@dataclass(frozen=True, slots=True)
class AllowedPlacement:
    """A way to place one table, with its ranks still open.

    Attributes:
        sharding_type: How the table is cut.
        compute_kernel: Kernel family.
        column_shards: Numbers of column shards worth trying, fewest first; `(1,)` for types that
            do not cut columns.
        rank_sets: Where shards may go. Table-wise: a set for each rank; take one set. Column-wise:
            one set; each shard takes a rank of it. Table-column-wise: a set for each node; shards
            take ranks of one of them. Table-row-wise: a set of all ranks for each node; take one.
            Grid: the same, one set for each column shard. Row-wise and data-parallel: one set.
        cache_load_factor: For `fused_uvm_caching`; None for the default.
        hot_rows: Numbers of hot rows worth trying, fewest first; see :class:`TablePlan`.
    """

    sharding_type: ShardingType
    compute_kernel: ComputeKernel
    column_shards: tuple[int, ...]
    rank_sets: tuple[tuple[int, ...], ...]
    cache_load_factor: float | None = None
    hot_rows: tuple[int, ...] = (0,)

    def on(self, table: str, ranks: Sequence[int], hot_rows: int | None = None) -> TablePlan:
        """Returns the placement on ranks chosen from `rank_sets`.

        Args:
            table: Name of the table.
            ranks: The ranks.
            hot_rows: One of `hot_rows`; None for the fewest.
        """
        return TablePlan(
            table,
            self.sharding_type,
            tuple(ranks),
            self.compute_kernel,
            self.cache_load_factor,
            self.hot_rows[0] if hot_rows is None else hot_rows,
        )

    @property
    def cached_share(self) -> float | None:
        """Share of rows in host memory that the device caches; None for rows on the device."""
        return self.on("", ()).cached_share


@dataclass(frozen=True, slots=True)
class PlanningRequest:
    """What to place, and where.

    Attributes:
        tables: The model's tables.
        optimizer: Update rule of the tables; its state takes memory next to the weights.
        world_size: Ranks.
        devices_per_node: Ranks of a full node: those that the fast link joins, so the ranks of a
            pod are one node here.
        allowed_types: Sharding types that may be used.
        embedding_memory_bytes: Memory of one rank that weights and state may take.
        seed: Seed of random planners.
        constraints: Constraints on single tables.
        allow_uvm: Whether tables may be in host memory unless a constraint says otherwise.
        hot_rows: Numbers of hot rows to try for each table besides none, unless a constraint says
            otherwise; empty where no table may have any.
    """

    tables: tuple[EmbeddingTable, ...]
    optimizer: Optimizer
    world_size: int
    devices_per_node: int
    allowed_types: frozenset[ShardingType]
    embedding_memory_bytes: float
    seed: int = 0
    constraints: tuple[TableConstraints, ...] = ()
    allow_uvm: bool = False
    hot_rows: tuple[tuple[int, ...], ...] = ()

    @property
    def may_use_host(self) -> bool:
        """Whether some table may be in host memory."""
        return self.allow_uvm or any(rule.allows_host for rule in self.constraints)

    @property
    def local_size(self) -> int:
        """Ranks on one node."""
        return min(self.world_size, self.devices_per_node)

    @property
    def node_count(self) -> int:
        """Nodes that the ranks occupy."""
        return math.ceil(self.world_size / self.devices_per_node)
