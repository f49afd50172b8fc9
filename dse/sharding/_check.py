"""Checks that a plan is complete and possible for a model and a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse._text.suggest import nearest
from dse.errors import PlanError
from dse.sharding._plan import NEAREST_WITHOUT_POOLING, ComputeKernel, ShardingType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.model import EmbeddingTable
    from dse.sharding._plan import ShardingPlan, TablePlan

_MAX_NAMES_SHOWN = 5


def check_plan(
    plan: ShardingPlan,
    tables: Sequence[EmbeddingTable],
    world_size: int,
    devices_per_node: int,
    *,
    rows_on_some: bool = False,
) -> ShardingPlan:
    """Checks a plan and returns it with its tables in the model's order.

    Args:
        plan: The plan.
        tables: The model's tables.
        world_size: Ranks of the cluster.
        devices_per_node: Ranks of a full node.
        rows_on_some: Whether rows may be cut over some ranks (row-wise) or some nodes
            (table-row-wise), which TorchRec does not have.

    Raises:
        PlanError: The plan is for another world size or another model, or a placement is
            impossible; the message lists every problem.
    """
    if plan.world_size != world_size:
        raise PlanError(
            f"the plan is for {plan.world_size} ranks but the cluster has {world_size}; "
            "re-plan, or choose that world size"
        )
    problems = name_problems(plan, tables)
    if not problems:
        by_name = {placement.table: placement for placement in plan.tables}
        ordered = tuple(by_name[table.name] for table in tables)
        for placement, table in zip(ordered, tables, strict=True):
            problems += _placement_problems(
                placement, table, world_size, devices_per_node, rows_on_some
            )
    if problems:
        raise PlanError("; ".join(problems))
    return type(plan)(world_size, ordered)


def name_problems(plan: ShardingPlan, tables: Sequence[EmbeddingTable]) -> list[str]:
    """Returns a problem for missing, unknown and repeated tables."""
    wanted = [table.name for table in tables]
    given = [placement.table for placement in plan.tables]
    problems = []
    missing = sorted(set(wanted) - set(given))
    unknown = sorted(set(given) - set(wanted))
    repeated = sorted({name for name in given if given.count(name) > 1})
    if missing:
        problems.append(f"no placement for {_some(missing)} of the model")
    if unknown:
        near = nearest(unknown[0], wanted)
        suggestion = f" (did you mean `{near}`?)" if near else ""
        problems.append(f"the model lacks {_some(unknown)} of the plan{suggestion}")
    if repeated:
        problems.append(f"more than one placement for {_some(repeated)}")
    return problems


def _some(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_MAX_NAMES_SHOWN])
    more = len(names) - _MAX_NAMES_SHOWN
    tables = "table" if len(names) == 1 else f"{len(names)} tables:"
    return f"{tables} {shown}" + (f" and {more} more" if more > 0 else "")


def _placement_problems(
    plan: TablePlan,
    table: EmbeddingTable,
    world_size: int,
    devices_per_node: int,
    rows_on_some: bool,
) -> list[str]:
    where = f"table `{plan.table}` ({plan.sharding_type.value})"
    outside = [rank for rank in plan.ranks if not 0 <= rank < world_size]
    if outside:
        return [f"{where}: rank {outside[0]} is outside 0–{world_size - 1}"]
    problems = _kernel_problems(plan, where) + _hot_row_problems(plan, table, where)
    if not table.pooled and (other := NEAREST_WITHOUT_POOLING.get(plan.sharding_type)):
        problems.append(
            f"{where}: its lookups are not pooled, so there are no sums that stay on a node; use "
            f"`{other.value}`"
        )
    expected = ""
    if not (rows_on_some and _on_some(plan, min(world_size, devices_per_node))):
        expected = _expected_ranks(plan, table, world_size, devices_per_node)
    if expected:
        problems.append(f"{where}: {expected}, found {_shorten(plan.ranks)}")
    return problems


def _kernel_problems(plan: TablePlan, where: str) -> list[str]:
    kernel, factor = plan.compute_kernel, plan.cache_load_factor
    if plan.sharding_type is ShardingType.DATA_PARALLEL and kernel.on_host:
        return [
            f"{where}: copies on every rank are updated by the dense optimizer in device memory; "
            f"use the kernel `dense`, or another type with `{kernel.value}`"
        ]
    if factor is None:
        return []
    if kernel is not ComputeKernel.FUSED_UVM_CACHING:
        return [f"{where}: a cache load factor is for `fused_uvm_caching`, found `{kernel.value}`"]
    if not 0.0 < factor <= 1.0:
        return [f"{where}: a cache load factor above 0 and at most 1 is expected, found {factor}"]
    return []


def _hot_row_problems(plan: TablePlan, table: EmbeddingTable, where: str) -> list[str]:
    if not plan.hot_rows:
        return []
    if plan.sharding_type is ShardingType.DATA_PARALLEL:
        return [f"{where}: every rank has a copy of all rows already; leave `hot_rows` out"]
    if not 0 < plan.hot_rows < table.rows:
        return [
            f"{where}: {plan.hot_rows:,} hot rows of {table.rows:,}; give fewer than all, or use "
            "`data_parallel`"
        ]
    return []


def _on_some(plan: TablePlan, local_size: int) -> bool:
    """Returns whether rows are cut over several ranks, or over whole nodes."""
    ranks = plan.ranks
    different = len(set(ranks)) == len(ranks) > 1
    if plan.sharding_type is ShardingType.TABLE_ROW_WISE:
        nodes = {rank // local_size for rank in ranks}
        return different and len(ranks) == local_size * len(nodes)
    return different and plan.sharding_type is ShardingType.ROW_WISE


def _shorten(ranks: tuple[int, ...]) -> str:
    text = ", ".join(str(rank) for rank in ranks[:9])
    return f"[{text}{', …' if len(ranks) > 9 else ''}]"


def _expected_ranks(
    plan: TablePlan, table: EmbeddingTable, world_size: int, devices_per_node: int
) -> str:
    """Returns what was expected of the ranks; empty if they are right."""
    kind, ranks = plan.sharding_type, plan.ranks
    local_size = min(world_size, devices_per_node)
    nodes = {rank // devices_per_node for rank in ranks}
    if kind is ShardingType.TABLE_WISE:
        return "" if len(ranks) == 1 else "one rank is expected"
    if kind in (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE):
        everyone = sorted(ranks) == list(range(world_size))
        return "" if everyone else f"all {world_size} ranks are expected, each once"
    if kind in (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE):
        if not 1 <= len(ranks) <= table.dim:
            return f"1 to {table.dim} column shards are expected"
        if kind is ShardingType.TABLE_COLUMN_WISE and len(nodes) != 1:
            return "ranks of one node are expected"
        return ""
    if kind is ShardingType.TABLE_ROW_WISE:
        whole_node = len(nodes) == 1 and len(set(ranks)) == len(ranks) == local_size
        return "" if whole_node else f"all {local_size} ranks of one node are expected"
    groups = [ranks[start : start + local_size] for start in range(0, len(ranks), local_size)]
    whole_nodes = bool(groups) and all(
        len(set(group)) == local_size and len({rank // devices_per_node for rank in group}) == 1
        for group in groups
    )
    if not whole_nodes:
        return f"groups of all {local_size} ranks of a node are expected"
    return "" if len(groups) <= table.dim else f"at most {table.dim} column shards are expected"
