"""Which demands on a table exclude each other, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dse.sharding._plan import ShardingType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dse.model import EmbeddingTable
    from dse.sharding._constraints import TableConstraints
    from dse.sharding._request import PlanningRequest

#: What a constraint may demand that can leave a table no place.
_DEMANDS = (
    "allowed_types",
    "allowed_kernels",
    "pinned_ranks",
    "min_partition",
    "max_partitions",
)


def contradiction(
    table: EmbeddingTable,
    request: PlanningRequest,
    applying: Sequence[TableConstraints],
    impossible: Callable[[tuple[TableConstraints, ...]], bool],
) -> str:
    """Names the fewest demands that leave no place: one, else a pair, else all of them.

    Args:
        table: A table that has none.
        request: What is allowed of all tables.
        applying: Constraints on this one.
        impossible: Says whether some constraints leave the table no place.
    """
    demands = [single for one in applying for single in _split(one)]
    alone = next((one for one in demands if impossible((one,))), None)
    allowed = ", ".join(sorted(kind.value for kind in request.allowed_types)) or "none"
    ranks = "1 rank" if request.world_size == 1 else f"{request.world_size} ranks"
    within = f"on {ranks} with the types allowed for all tables ({allowed})"
    if impossible(()):
        return f"{of_table(table)}there is no place {within}; allow more types"
    if alone is not None:
        return (
            f"{of_table(table)}{_words(alone)} cannot be met {within}; allow more types or drop it"
        )
    for index, first in enumerate(demands):
        for second in demands[index + 1 :]:
            if impossible((first, second)):
                return (
                    f"{of_table(table)}{_words(first)} contradicts {_words(second)}"
                    f"{_why((first, second), request)}; drop one of the two"
                )
    together = "; ".join(_words(one) for one in demands)
    return f"{of_table(table)}no placement meets all of: {together}; drop one of them"


def of_table(table: EmbeddingTable) -> str:
    """Returns how a line about one table begins."""
    return f"table `{table.name}`: "


def _split(constraint: TableConstraints) -> Iterator[TableConstraints]:
    """Yields one constraint a demand, so that a contradiction names just these."""
    nothing: dict[str, Any] = dict.fromkeys(_DEMANDS)
    for name in _DEMANDS:
        value = getattr(constraint, name)
        if value is not None:
            yield replace(constraint, **{**nothing, name: value})


def _words(demand: TableConstraints) -> str:
    if demand.allowed_types is not None:
        what = "only " + " or ".join(sorted(kind.value for kind in demand.allowed_types))
    elif demand.allowed_kernels is not None:
        what = "only " + " or ".join(sorted(kernel.value for kernel in demand.allowed_kernels))
    elif demand.pinned_ranks is not None:
        ranks = sorted(demand.pinned_ranks)
        what = f"pinned to rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    elif demand.min_partition is not None:
        what = f"column pieces of at least {demand.min_partition} columns"
    else:
        what = f"at most {demand.max_partitions} column pieces"
    return f"{what} ({origin_words(demand)})"


def _why(pair: tuple[TableConstraints, TableConstraints], request: PlanningRequest) -> str:
    """Says how many ranks a type needs, where pinned ranks are the other side."""
    types = next((one.allowed_types for one in pair if one.allowed_types is not None), None)
    if types is None or all(one.pinned_ranks is None for one in pair):
        return ""
    everyone = {ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL}
    if types <= everyone:
        return f", which needs all {request.world_size} ranks"
    return f", which needs all {request.local_size} ranks of a node"


def origin_words(constraint: TableConstraints) -> str:
    """Returns where a constraint was written, in words."""
    return constraint.origin or f"constraint on `{constraint.tables}`"
