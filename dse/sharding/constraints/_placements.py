"""Placements of one table that a request and its constraints allow.

Every constraint whose pattern matches a table applies to it; constraints only narrow what is
allowed. :func:`placements_allowed` enumerates the rest; planners and searches use nothing else. If
nothing is left, the message names the constraints that exclude each other.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from dse.errors import ConfigError
from dse.sharding._plan import NEAREST_WITHOUT_POOLING, ComputeKernel, ShardingType
from dse.sharding._shards import MIN_COLUMNS
from dse.sharding.constraints._contradictions import constraint_origin, contradiction, table_prefix
from dse.sharding.constraints._types import AllowedPlacement

if TYPE_CHECKING:
    from dse.model import EmbeddingTable
    from dse.sharding.constraints._types import PlanningRequest, TableConstraints

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

#: Most tables named by one line about a contradiction.
_MOST_NAMED = 3

_CUT_BY_COLUMNS = (
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.GRID_SHARD,
)


def placements_allowed(table_index: int, request: PlanningRequest) -> tuple[AllowedPlacement, ...]:
    """Returns every way to place one table, in the planners' order of preference.

    Args:
        table_index: Number of the table in the request.
        request: Tables, ranks, and what is allowed.

    Raises:
        ConfigError: Nothing is allowed; the message names the contradicting constraints.
    """
    table = request.tables[table_index]
    applying = tuple(rule for rule in request.constraints if rule.matches(table.name))
    limits, offered = _limits(request), request.hot_rows[table_index] if request.hot_rows else ()
    if not table.pooled:
        limits = _without_pooling(table, limits, applying)

    def allowed(rules: tuple[TableConstraints, ...]) -> tuple[AllowedPlacement, ...]:
        counts = _hot_rows(table.rows, offered, rules)
        return _with_hot_rows(_enumerate(table.dim, limits, rules), counts)

    found = allowed(applying)
    if not found:
        raise ConfigError(contradiction(table, request, applying, lambda some: not allowed(some)))
    return found


def _without_pooling(
    table: EmbeddingTable, limits: _Limits, applying: tuple[TableConstraints, ...]
) -> _Limits:
    """Returns what is allowed for a table without pooling."""
    named = [rule.allowed_types for rule in applying if rule.allowed_types]
    types = limits.allowed_types.intersection(*named)
    if types and types <= NEAREST_WITHOUT_POOLING.keys():
        nearest = sorted({NEAREST_WITHOUT_POOLING[kind] for kind in types})
        raise ConfigError(
            f"{table_prefix(table)}its lookups are not pooled, so it cannot be sharded by "
            f"{', '.join(sorted(types))}; allow {' or '.join(nearest)}"
        )
    allowed = limits.allowed_types.difference(NEAREST_WITHOUT_POOLING)
    return limits._replace(allowed_types=allowed)


def _hot_rows(
    rows: int, offered: tuple[int, ...], applying: tuple[TableConstraints, ...]
) -> tuple[int, ...]:
    """Returns the numbers of hot rows that a table may have, fewest first."""
    named = [rule.hot_rows for rule in applying if rule.hot_rows is not None]
    if not named:
        return (0, *offered)
    allowed = frozenset.intersection(*named)
    return tuple(sorted({count if count < rows else 0 for count in allowed}))


def _with_hot_rows(
    placements: tuple[AllowedPlacement, ...], counts: tuple[int, ...]
) -> tuple[AllowedPlacement, ...]:
    """Returns placements with numbers of hot rows; a copy of all rows has none."""
    if counts == (0,):
        return placements
    if not counts:
        return ()
    return tuple(
        placement
        if placement.sharding_type is ShardingType.DATA_PARALLEL
        else replace(placement, hot_rows=counts)
        for placement in placements
        if placement.sharding_type is not ShardingType.DATA_PARALLEL or 0 in counts
    )


def check_constraints(request: PlanningRequest) -> None:
    """Checks that every constraint matches a table and leaves its tables a place.

    Raises:
        ConfigError: With a line for every problem.
    """
    from dse._text.suggest import nearest

    names = [table.name for table in request.tables]
    problems = []
    for constraint in request.constraints:
        origin = constraint_origin(constraint)
        if not any(constraint.matches(name) for name in names):
            near = nearest(constraint.tables, names)
            suggestion = f"; did you mean `{near}`?" if near else ""
            problems.append(f"{origin}: no table is called `{constraint.tables}`{suggestion}")
        outside = sorted(
            rank for rank in constraint.pinned_ranks or () if not 0 <= rank < request.world_size
        )
        if outside:
            last = request.world_size - 1
            problems.append(f"{origin}: rank {outside[0]} is outside 0–{last}")
    if not problems:
        problems = _without_place(request)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def _without_place(request: PlanningRequest) -> list[str]:
    """Returns a line for each contradiction; tables that share one are named together."""
    tables: dict[str, list[str]] = {}
    for index, table in enumerate(request.tables):
        try:
            placements_allowed(index, request)
        except ConfigError as error:
            reason = str(error).removeprefix(table_prefix(table))
            tables.setdefault(reason, []).append(f"`{table.name}`")
    lines = []
    for reason, names in tables.items():
        named = ", ".join(names[:_MOST_NAMED])
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        lines.append(f"table{'s' if len(names) > 1 else ''} {named}{more}: {reason}")
    return lines


class _Limits(NamedTuple):
    """What a request allows for all tables; a key of the cache."""

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
    """Enumerates placements of a table with `dim` columns, which is all that matters of it."""
    kernels = _kernels(limits, applying)
    factors = [rule.cache_load_factor for rule in applying if rule.cache_load_factor is not None]
    ranks = tuple(
        rank
        for rank in range(limits.world_size)
        if all(rule.pinned_ranks is None or rank in rule.pinned_ranks for rule in applying)
    )
    found = []
    for kernel in (*_SPREAD_KERNELS, ComputeKernel.DENSE):
        if kernel not in kernels:
            continue
        for kind in TYPE_PREFERENCE:
            replicated = kind is ShardingType.DATA_PARALLEL
            if kind not in limits.allowed_types or replicated != (kernel is ComputeKernel.DENSE):
                continue
            if any(rule.allowed_types and kind not in rule.allowed_types for rule in applying):
                continue
            rank_sets = _rank_sets(kind, limits, ranks)
            counts = _column_shards(kind, dim, applying, rank_sets)
            if rank_sets and counts:
                caching = kernel is ComputeKernel.FUSED_UVM_CACHING
                factor = min(factors) if caching and factors else None
                found.append(AllowedPlacement(kind, kernel, counts, rank_sets, factor))
    return tuple(found)


def _kernels(limits: _Limits, applying: tuple[TableConstraints, ...]) -> frozenset[ComputeKernel]:
    named = [rule.allowed_kernels for rule in applying if rule.allowed_kernels is not None]
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


def _column_shards(
    kind: ShardingType,
    dim: int,
    applying: tuple[TableConstraints, ...],
    rank_sets: tuple[tuple[int, ...], ...],
) -> tuple[int, ...]:
    if kind not in _CUT_BY_COLUMNS or not rank_sets:
        return (1,)
    places = len(rank_sets) if kind is ShardingType.GRID_SHARD else max(map(len, rank_sets))
    narrow = [rule.min_partition for rule in applying if rule.min_partition is not None]
    most = [rule.max_partitions for rule in applying if rule.max_partitions is not None]
    if dim < max(narrow, default=1):
        return ()
    return _powers_of_two(min([places, dim // max(narrow, default=MIN_COLUMNS), *most]))


def _powers_of_two(limit: int) -> tuple[int, ...]:
    """Returns 2, 4, … up to a limit, or a single shard."""
    return tuple(2**power for power in range(1, 11) if 2**power <= limit) or (1,)
