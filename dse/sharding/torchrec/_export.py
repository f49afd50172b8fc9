"""Export of a plan to TorchRec: every shard with its offsets, sizes and placement.

TorchRec gives the tables of a collection that have one sharding type an input exchange, a lookup
kernel and an output exchange of their own. Whole tables and tables cut by columns need the same
exchanges, so where a plan has both they are all written as `column_wise`, a whole table with one
shard of full width: one set of exchanges, as the performance model counts them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from dse.errors import PlanError
from dse.sharding._plan import ComputeKernel, ShardingType
from dse.sharding._shards import table_shards
from dse.sharding.torchrec._conventions import (
    empty_problem,
    order_problem,
    own_name,
    width_problem,
)
from dse.sharding.torchrec._document import TorchRecParameter, TorchRecPlan, TorchRecShard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.model import EmbeddingTable
    from dse.sharding._plan import ShardingPlan, TablePlan
    from dse.sharding._shards import TableShard

#: Module with the tables in TorchRec's DLRM.
TORCHREC_MODULE = "model.sparse_arch.embedding_bag_collection"

#: Module of tables without pooling beside it, where no other is given.
_WITHOUT_POOLING = "model.sparse_arch.embedding_collection"

#: Types that exchange the same, pooled vectors of whole bags by all-to-all.
_EXCHANGED_ALIKE = frozenset(
    {ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE}
)


def export_plan(
    plan: ShardingPlan,
    tables: Sequence[EmbeddingTable],
    devices_per_node: int,
    device_kind: str,
    module_path: str | Mapping[str, str],
    devices_per_domain: int | None,
) -> TorchRecPlan:
    """Returns a plan in TorchRec's terms.

    Args:
        plan: A checked plan.
        tables: The model's tables, in the plan's order.
        devices_per_node: Ranks of a full node; gives the local device of a placement.
        device_kind: `cuda` or `cpu`.
        module_path: Path of the module that holds the tables, or the path for each table's name.
            Beside the usual module of pooled tables those without pooling have one of their own.
        devices_per_domain: Ranks of a full pod, which tables over a node's ranks then span; None
            for those of a node.

    Raises:
        PlanError: TorchRec would not follow the plan, or a table has no module.
    """
    domain = devices_per_domain or devices_per_node
    problems: list[str] = []
    parameters: list[TorchRecParameter] = []
    alike: dict[str, set[ShardingType]] = defaultdict(set)
    taken: dict[tuple[str, str], str] = {}
    for placement, table in zip(plan.tables, tables, strict=True):
        module = module_path if isinstance(module_path, str) else module_path.get(placement.table)
        if module == TORCHREC_MODULE and not table.pooled:
            module = _WITHOUT_POOLING
        shards = table_shards(placement, table, domain)
        found = "`module_path` has no module for it" if module is None else ""
        found = found or _problem(placement, shards, min(domain, plan.world_size))
        if device_kind == "cpu":
            found = found or empty_problem(shards)
        own = (module or "", own_name(module or "", placement.table))
        if not found and own in taken:
            found = f"TorchRec would call it `{own[1]}` in `{own[0]}`, as table `{taken[own]}`"
        if found:
            where = f"table `{placement.table}` ({placement.sharding_type.value})"
            problems.append(f"{where}: {found}")
            continue
        taken[own] = placement.table
        if table.pooled and placement.sharding_type in _EXCHANGED_ALIKE:
            alike[own[0]].add(placement.sharding_type)
        parameters.append(
            TorchRecParameter(
                module=own[0],
                table=own[1],
                sharding_type=placement.sharding_type,
                compute_kernel=placement.compute_kernel.value,
                ranks=placement.ranks,
                shards=_shards(placement, shards, devices_per_node, device_kind),
                cache_load_factor=placement.cache_load_factor,
            )
        )
    if problems:
        raise PlanError("; ".join(problems))
    return TorchRecPlan(
        plan.world_size,
        tuple(
            replace(one, sharding_type=ShardingType.COLUMN_WISE)
            if one.sharding_type in alike[one.module] and len(alike[one.module]) > 1
            else one
            for one in parameters
        ),
    )


def _problem(placement: TablePlan, shards: Sequence[TableShard], local_size: int) -> str:
    if placement.hot_rows:
        return "TorchRec keeps no hot rows on every rank; plan without them"
    replicated = placement.sharding_type is ShardingType.DATA_PARALLEL
    if replicated and placement.compute_kernel is not ComputeKernel.DENSE:
        return (
            f"compute kernel `{placement.compute_kernel.value}` cannot be replicated by TorchRec; "
            "use `dense`"
        )
    return order_problem(placement, local_size) or width_problem(shards)


def _shards(
    placement: TablePlan, shards: Sequence[TableShard], devices_per_node: int, device_kind: str
) -> tuple[TorchRecShard, ...] | None:
    if placement.sharding_type is ShardingType.DATA_PARALLEL:
        return None
    return tuple(
        TorchRecShard(
            row_offset=shard.row_offset,
            rows=shard.rows,
            column_offset=shard.column_offset,
            columns=shard.columns,
            placement=_device(shard.rank, devices_per_node, device_kind),
        )
        for shard in shards
    )


def _device(rank: int, devices_per_node: int, device_kind: str) -> str:
    if device_kind == "cpu":
        return f"rank:{rank}/cpu"
    return f"rank:{rank}/{device_kind}:{rank % devices_per_node}"
