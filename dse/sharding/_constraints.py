"""What a person demands of single tables, and where that leaves a table to go.

Every constraint whose pattern matches a table applies to it; together they may only narrow what
is allowed. What is left is enumerated by :func:`placements_allowed`, the one place that planners
and searches ask. When nothing is left, the message names the constraints that exclude each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from dse.errors import ConfigError
from dse.sharding._contradictions import contradiction, of_table, origin_words
from dse.sharding._pieces import MIN_COLUMNS
from dse.sharding._plan import ComputeKernel, ShardingType, TablePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.model import EmbeddingTable
    from dse.sharding._request import PlanningRequest

#: Types in the order in which planners try them for a table.
TYPE_PREFERENCE = (
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.TABLE_ROW_WISE,
    ShardingType.GRID_SHARD,
    ShardingType.ROW_WISE,
    ShardingType.DATA_PARALLEL,
)

#: Kernels of tables that are spread over ranks, the fastest first.
_SPREAD_KERNELS = (
    ComputeKernel.FUSED,
    ComputeKernel.FUSED_UVM_CACHING,
    ComputeKernel.FUSED_UVM,
)

#: Tables that one line about a contradiction names.
_MOST_NAMED = 3

_CUT_BY_COLUMNS = (
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.GRID_SHARD,
)


@dataclass(frozen=True, slots=True)
class TableConstraints:
    """What is demanded of the tables whose name matches a pattern; None demands nothing.

    Attributes:
        tables: Name of a table, or a shell pattern such as `cat_*`.
        allowed_types: Sharding types that may be used.
        allowed_kernels: Compute kernels that may be used; `fused_uvm` and `fused_uvm_caching`
            are allowed by naming them, whatever the request says.
        pinned_ranks: The only ranks that may hold a piece.
        min_partition: Fewest columns of a column piece.
        max_partitions: Most column pieces.
        cache_load_factor: Share of rows that `fused_uvm_caching` keeps on the device.
        origin: Where the constraint was written; for messages.
    """

    tables: str = "*"
    allowed_types: frozenset[ShardingType] | None = None
    allowed_kernels: frozenset[ComputeKernel] | None = None
    pinned_ranks: frozenset[int] | None = None
    min_partition: int | None = None
    max_partitions: int | None = None
    cache_load_factor: float | None = None
    origin: str = ""

    def matches(self, table: str) -> bool:
        """Returns whether the constraint is about a table of that name."""
        return fnmatchcase(table, self.tables)


@dataclass(frozen=True, slots=True)
class AllowedPlacement:
    """A way to place one table, its ranks still open.

    Attributes:
        sharding_type: How the table is cut.
        compute_kernel: Kernel family.
        column_pieces: Numbers of column pieces worth trying, fewest first; `(1,)` for types that
            do not cut columns.
        rank_sets: Where pieces may go. Table-wise: one rank a set, take one set. Column-wise: one
            set, each piece takes a rank of it. Table-column-wise: one set a node, pieces take
            ranks of one of them. Table-row-wise: all ranks of a node a set, take one. Grid: the
            same, one set for each column piece. Row-wise and data-parallel: one set, take it.
        cache_load_factor: For `fused_uvm_caching`; None for the default.
    """

    sharding_type: ShardingType
    compute_kernel: ComputeKernel
    column_pieces: tuple[int, ...]
    rank_sets: tuple[tuple[int, ...], ...]
    cache_load_factor: float | None = None

    def on(self, table: str, ranks: Sequence[int]) -> TablePlan:
        """Returns the placement on ranks chosen from `rank_sets`."""
        return TablePlan(
            table, self.sharding_type, tuple(ranks), self.compute_kernel, self.cache_load_factor
        )

    @property
    def cached_share(self) -> float | None:
        """Share of rows in host memory that the device caches; None for rows on the device."""
        return self.on("", ()).cached_share


def placements_allowed(table_index: int, request: PlanningRequest) -> tuple[AllowedPlacement, ...]:
    """Returns every way in which one table may be placed, in the order of planners' preference.

    Args:
        table_index: Number of the table in the request.
        request: Tables, ranks, and what is allowed of all tables and of single ones.

    Raises:
        ConfigError: Nothing is allowed; the message names what excludes each other.
    """
    table = request.tables[table_index]
    applying = tuple(one for one in request.constraints if one.matches(table.name))
    found = _enumerate(table.dim, _limits(request), applying)
    if not found:
        limits = _limits(request)
        raise ConfigError(
            contradiction(
                table, request, applying, lambda some: not _enumerate(table.dim, limits, some)
            )
        )
    return found


def check_constraints(request: PlanningRequest) -> None:
    """Checks that every constraint is about a table and leaves each of them a place.

    Raises:
        ConfigError: With a line for every problem.
    """
    from dse._suggest import nearest

    names = [table.name for table in request.tables]
    problems = []
    for constraint in request.constraints:
        if not any(constraint.matches(name) for name in names):
            near = nearest(constraint.tables, names)
            suggestion = f"; did you mean `{near}`?" if near else ""
            problems.append(
                f"{origin_words(constraint)}: no table is called `{constraint.tables}`{suggestion}"
            )
        outside = sorted(
            rank for rank in constraint.pinned_ranks or () if not 0 <= rank < request.world_size
        )
        if outside:
            last = request.world_size - 1
            problems.append(f"{origin_words(constraint)}: rank {outside[0]} is outside 0–{last}")
    if not problems:
        problems = _without_place(request)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def _without_place(request: PlanningRequest) -> list[str]:
    """Returns a line for each contradiction: tables that share one are named together."""
    tables: dict[str, list[str]] = {}
    for index, table in enumerate(request.tables):
        try:
            placements_allowed(index, request)
        except ConfigError as error:
            reason = str(error).removeprefix(of_table(table))
            tables.setdefault(reason, []).append(f"`{table.name}`")
    lines = []
    for reason, names in tables.items():
        named = ", ".join(names[:_MOST_NAMED])
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        lines.append(f"table{'s' if len(names) > 1 else ''} {named}{more}: {reason}")
    return lines


class _Limits(NamedTuple):
    """What a request allows for all tables; few requests share many tables."""

    world_size: int
    devices_per_node: int
    allowed_types: frozenset[ShardingType]
    allow_uvm: bool


def _limits(request: PlanningRequest) -> _Limits:
    return _Limits(
        request.world_size, request.devices_per_node, request.allowed_types, request.allow_uvm
    )


@lru_cache(maxsize=4096)
def _enumerate(
    dim: int, limits: _Limits, applying: tuple[TableConstraints, ...]
) -> tuple[AllowedPlacement, ...]:
    """Enumerates placements of a table of `dim` columns; nothing else of it matters."""
    kernels = _kernels(limits, applying)
    factors = [one.cache_load_factor for one in applying if one.cache_load_factor is not None]
    ranks = tuple(
        rank
        for rank in range(limits.world_size)
        if all(one.pinned_ranks is None or rank in one.pinned_ranks for one in applying)
    )
    found = []
    for kernel in (*_SPREAD_KERNELS, ComputeKernel.DENSE):
        if kernel not in kernels:
            continue
        for kind in TYPE_PREFERENCE:
            replicated = kind is ShardingType.DATA_PARALLEL
            if kind not in limits.allowed_types or replicated != (kernel is ComputeKernel.DENSE):
                continue
            if any(one.allowed_types and kind not in one.allowed_types for one in applying):
                continue
            rank_sets = _rank_sets(kind, limits, ranks)
            counts = _column_pieces(kind, dim, applying, rank_sets)
            if rank_sets and counts:
                caching = kernel is ComputeKernel.FUSED_UVM_CACHING
                factor = min(factors) if caching and factors else None
                found.append(AllowedPlacement(kind, kernel, counts, rank_sets, factor))
    return tuple(found)


def _kernels(limits: _Limits, applying: tuple[TableConstraints, ...]) -> frozenset[ComputeKernel]:
    named = [one.allowed_kernels for one in applying if one.allowed_kernels is not None]
    if named:
        return frozenset.intersection(*named)
    kernels = frozenset(ComputeKernel)
    return kernels if limits.allow_uvm else frozenset(k for k in kernels if not k.on_host)


@lru_cache(maxsize=4096)
def _rank_sets(
    kind: ShardingType, limits: _Limits, ranks: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    if kind is ShardingType.TABLE_WISE:
        return tuple((rank,) for rank in ranks)
    if kind is ShardingType.COLUMN_WISE:
        return (ranks,) if ranks else ()
    if kind in (ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL):
        return (ranks,) if len(ranks) == limits.world_size else ()
    size = limits.devices_per_node
    nodes = [tuple(group) for _, group in groupby(ranks, key=lambda rank: rank // size)]
    if kind is ShardingType.TABLE_COLUMN_WISE:
        return tuple(nodes)
    return tuple(node for node in nodes if len(node) == min(limits.world_size, size))


def _column_pieces(
    kind: ShardingType,
    dim: int,
    applying: tuple[TableConstraints, ...],
    rank_sets: tuple[tuple[int, ...], ...],
) -> tuple[int, ...]:
    if kind not in _CUT_BY_COLUMNS or not rank_sets:
        return (1,)
    places = len(rank_sets) if kind is ShardingType.GRID_SHARD else max(map(len, rank_sets))
    narrow = [one.min_partition for one in applying if one.min_partition is not None]
    most = [one.max_partitions for one in applying if one.max_partitions is not None]
    if dim < max(narrow, default=1):
        return ()
    return _powers_of_two(min([places, dim // max(narrow, default=MIN_COLUMNS), *most]))


def column_piece_counts(
    kind: ShardingType, table: EmbeddingTable, request: PlanningRequest
) -> tuple[int, ...]:
    """Returns the numbers of column pieces worth trying for a type, fewest first."""
    limits = {
        ShardingType.COLUMN_WISE: request.world_size,
        ShardingType.TABLE_COLUMN_WISE: request.local_size,
        ShardingType.GRID_SHARD: request.node_count,
    }
    if kind not in limits:
        return (1,)
    return _powers_of_two(min(limits[kind], table.dim // MIN_COLUMNS))


def _powers_of_two(limit: int) -> tuple[int, ...]:
    """Returns 2, 4, … up to a limit; a single piece when there are none."""
    return tuple(2**power for power in range(1, 11) if 2**power <= limit) or (1,)
