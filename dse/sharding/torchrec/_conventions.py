"""TorchRec's conventions: names of tables, and what it takes for granted of shards.

TorchRec names a table by the path of its module and its own name, and names may repeat in several
modules. A model knows names only. A table is therefore found by its own name if that is unique in
the plan, or by its name after the end of the module's path (`user.t0`, `arch.user.t0`), which
stays valid when a wrapper adds a prefix to the path.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from dse.model import Optimizer
from dse.sharding._plan import ShardingType

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dse.sharding._plan import TablePlan
    from dse.sharding._shards import TableShard
    from dse.sharding.torchrec._document import TorchRecParameter


#: FBGEMM's name (`EmbOptimType`) of each update rule of tables.
OPTIMIZER_TYPES: Mapping[Optimizer, str] = {
    Optimizer.SGD: "EXACT_SGD",
    Optimizer.ROWWISE_ADAGRAD: "EXACT_ROWWISE_ADAGRAD",
    Optimizer.ADAGRAD: "EXACT_ADAGRAD",
    Optimizer.ADAM: "ADAM",
    Optimizer.PARTIAL_ROWWISE_ADAM: "PARTIAL_ROWWISE_ADAM",
    Optimizer.LAMB: "LAMB",
    Optimizer.PARTIAL_ROWWISE_LAMB: "PARTIAL_ROWWISE_LAMB",
    Optimizer.LARS_SGD: "LARS_SGD",
}

#: Types that cut rows.
_ROWS_ARE_CUT = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)


def qualified_names(module: str, table: str) -> list[str]:
    """Returns the names that a model may use for a table, longest first, its own name last."""
    parts = module.split(".") if module else []
    return [".".join((*parts[start:], table)) for start in range(len(parts) + 1)]


def own_name(module: str, name: str) -> str:
    """Returns the module's own name of a table that a model calls `name`."""
    parts = module.split(".") if module else []
    for start in range(len(parts)):
        prefix = ".".join(parts[start:]) + "."
        if name.startswith(prefix) and len(name) > len(prefix):
            return name[len(prefix) :]
    return name


def model_names(
    parameters: tuple[TorchRecParameter, ...], known: Collection[str] | None
) -> tuple[list[str], list[str]]:
    """Returns the model's names of a plan's tables.

    Args:
        parameters: The plan's tables.
        known: Names of the model's tables; ``None`` when there is no model.

    Returns:
        A name for each parameter (without a model its own name, with the whole path if names
        repeat), and a problem for each repeated name that the model does not qualify.
    """
    modules: dict[str, list[str]] = defaultdict(list)
    for parameter in parameters:
        modules[parameter.table].append(parameter.module)
    names, problems = [], []
    for parameter in parameters:
        offered = qualified_names(parameter.module, parameter.table)
        repeated = len(modules[parameter.table]) > 1
        usable = offered[:-1] if repeated and len(offered) > 1 else offered
        plain = offered[0] if repeated else parameter.table
        found = None if known is None else next((name for name in usable if name in known), None)
        names.append(plain if found is None else found)
    if known is not None:
        for table, paths in modules.items():
            if len(paths) > 1 and table in known:
                problems.append(
                    f"the plan has table `{table}` in modules "
                    + " and ".join(f"`{path}`" for path in paths)
                    + ", so the model has to name each by its module, for example "
                    + f"`{qualified_names(paths[0], table)[-2:][0]}`"
                )
    return names, problems


def order_problem(plan: TablePlan, row_group: int) -> str:
    """Returns the problem with the order of a table's ranks, or an empty text.

    TorchRec gives the next block of rows to the next rank, whatever the placements of the shards
    say, so another order would be stored but ignored.

    Args:
        plan: A table's placement.
        row_group: Ranks that share one column shard of a grid.
    """
    if plan.sharding_type not in _ROWS_ARE_CUT:
        return ""
    step = row_group if plan.sharding_type is ShardingType.GRID_SHARD else len(plan.ranks)
    for start in range(0, len(plan.ranks), step):
        group = plan.ranks[start : start + step]
        if list(group) != sorted(group):
            return (
                f"ranks {list(group)} are not in rising order, but TorchRec gives the blocks of "
                "rows to the ranks in rising order; sort them"
            )
    return ""


def width_problem(shards: Sequence[TableShard]) -> str:
    """Returns the problem of a rank with shards of different widths, or an empty text.

    TorchRec views all shards of a table on a rank as one array of the first one's width.
    """
    widths: dict[int, int] = {}
    for shard in shards:
        width = widths.setdefault(shard.rank, shard.columns)
        if width != shard.columns:
            return (
                f"rank {shard.rank} has shards of {width} and of {shard.columns} columns, but "
                "TorchRec needs one width for all that a rank has of a table; put them on "
                "different ranks or use a number of shards that divides the columns evenly"
            )
    return ""


def empty_problem(shards: Sequence[TableShard]) -> str:
    """Returns the problem of a rank without rows of a table, or an empty text; for plans on CPUs.

    The CPU lookup kernels fail on a block without rows.
    """
    for shard in shards:
        if shard.rows == 0:
            rows = max(other.row_offset + other.rows for other in shards)
            return (
                f"rank {shard.rank} gets none of the {rows} rows, and the CPU kernels of TorchRec "
                "fail on an empty block; place so small a table whole or replicated"
            )
    return ""
