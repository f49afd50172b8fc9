"""Contradictions between constraints on a table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dse.sharding._plan import ShardingType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dse.model import EmbeddingTable
    from dse.sharding.constraints._types import PlanningRequest, TableConstraints

#: Fields of a constraint that can leave a table without a place.
_DEMANDS = (
    "allowed_types",
    "allowed_kernels",
    "pinned_ranks",
    "min_partition",
    "max_partitions",
    "hot_rows",
)


def contradiction(
    table: EmbeddingTable,
    request: PlanningRequest,
    applying: Sequence[TableConstraints],
    impossible: Callable[[tuple[TableConstraints, ...]], bool],
) -> str:
    """Names the fewest demands that leave no place: one, a pair, or all of them.

    Args:
        table: A table without a place.
        request: What is allowed of all tables.
        applying: Constraints on this table.
        impossible: Returns whether some constraints leave the table no place.
    """
    demands = [demand for rule in applying for demand in _split(rule)]
    alone = next((demand for demand in demands if impossible((demand,))), None)
    allowed = ", ".join(sorted(kind.value for kind in request.allowed_types)) or "none"
    ranks = "1 rank" if request.world_size == 1 else f"{request.world_size} ranks"
    within = f"on {ranks} with the types allowed for all tables ({allowed})"
    if impossible(()):
        return f"{table_prefix(table)}there is no place {within}; allow more types"
    if alone is not None:
        remedies = "allow more types or drop it"
        return f"{table_prefix(table)}{_describe(alone)} cannot be met {within}; {remedies}"
    for index, first in enumerate(demands):
        for second in demands[index + 1 :]:
            if impossible((first, second)):
                return (
                    f"{table_prefix(table)}{_describe(first)} contradicts {_describe(second)}"
                    f"{_why((first, second), request)}; drop one of the two"
                )
    together = "; ".join(_describe(demand) for demand in demands)
    return f"{table_prefix(table)}no placement meets all of: {together}; drop one of them"


def table_prefix(table: EmbeddingTable) -> str:
    """Returns the start of a line about a table."""
    return f"table `{table.name}`: "


def _split(constraint: TableConstraints) -> Iterator[TableConstraints]:
    """Yields a constraint for each demand, so that a contradiction names just these."""
    nothing: dict[str, Any] = dict.fromkeys(_DEMANDS)
    for name in _DEMANDS:
        value = getattr(constraint, name)
        if value is not None:
            yield replace(constraint, **{**nothing, name: value})


def _describe(demand: TableConstraints) -> str:
    if demand.allowed_types is not None:
        what = "only " + " or ".join(sorted(kind.value for kind in demand.allowed_types))
    elif demand.allowed_kernels is not None:
        what = "only " + " or ".join(sorted(kernel.value for kernel in demand.allowed_kernels))
    elif demand.pinned_ranks is not None:
        ranks = sorted(demand.pinned_ranks)
        what = f"pinned to rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    elif demand.min_partition is not None:
        what = f"column shards of at least {demand.min_partition} columns"
    elif demand.hot_rows is not None:
        counts = " or ".join(f"{count:,}" for count in sorted(demand.hot_rows))
        what = f"{counts} hot rows"
    else:
        what = f"at most {demand.max_partitions} column shards"
    return f"{what} ({constraint_origin(demand)})"


def _why(pair: tuple[TableConstraints, TableConstraints], request: PlanningRequest) -> str:
    """Returns how many ranks a type needs, if it contradicts pinned ranks."""
    types = next((rule.allowed_types for rule in pair if rule.allowed_types is not None), None)
    if types is None or all(rule.pinned_ranks is None for rule in pair):
        return ""
    everyone = {ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL}
    if types <= everyone:
        return f", which needs all {request.world_size} ranks"
    return f", which needs all {request.local_size} ranks of a node"


def constraint_origin(constraint: TableConstraints) -> str:
    """Returns where a constraint was written."""
    return constraint.origin or f"constraint on `{constraint.tables}`"
