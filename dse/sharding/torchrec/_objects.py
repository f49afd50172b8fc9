"""Conversion of TorchRec's live plan objects; only building them needs TorchRec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse.errors import OptionalDependencyError, PlanError
from dse.sharding._check import check_plan
from dse.sharding._plan import ShardingType
from dse.sharding.torchrec._document import TorchRecParameter, TorchRecPlan, TorchRecShard
from dse.sharding.torchrec._export import TORCHREC_MODULE, export_plan
from dse.sharding.torchrec._import import import_plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.model import DlrmModel, EmbeddingTable
    from dse.sharding._plan import ShardingPlan


def from_torchrec(
    plan: Any, model: DlrmModel | Sequence[EmbeddingTable], *, world_size: int | None = None
) -> ShardingPlan:
    """Converts a live TorchRec plan; its tables come in the model's order.

    :func:`check_plan` checks it against the nodes of a cluster.

    Args:
        plan: A `torchrec.distributed.types.ShardingPlan`.
        model: The model, or its tables.
        world_size: Number of ranks; optional if a table is row-wise or data-parallel, which are on
            all ranks.

    Raises:
        PlanError: The plan is for another model, its kernels or shards cannot be predicted, or the
            number of ranks is unknown. The message names every problem.
    """
    tables = _tables_of(model)
    parameters = tuple(
        _parameter(str(module), str(table), sharding)
        for module, module_plan in plan.plan.items()
        for table, sharding in module_plan.items()
    )
    found = import_plan(TorchRecPlan(None, parameters), tables, world_size)
    by_name = {placement.table: placement for placement in found.tables}
    return type(found)(found.world_size, tuple(by_name[table.name] for table in tables))


def to_torchrec(
    plan: ShardingPlan,
    model: DlrmModel | Sequence[EmbeddingTable],
    *,
    devices_per_node: int,
    device_kind: str = "cuda",
    module_path: str | Mapping[str, str] = TORCHREC_MODULE,
    devices_per_domain: int | None = None,
) -> Any:
    """Builds the `torchrec.distributed.types.ShardingPlan` of a plan.

    Args:
        plan: The plan; it is checked against the model.
        model: The model, or its tables.
        devices_per_node: Ranks of a full node.
        device_kind: `cuda` or `cpu`.
        module_path: Path of the module with the tables, in the model that is passed to
            `DistributedModelParallel`, or the path for each table's name.
        devices_per_domain: Ranks of a full pod, which tables over a node's ranks then span
            (`TOPOLOGY_DOMAIN_MULTIPLE` nodes in TorchRec); those of a node by default.

    Raises:
        OptionalDependencyError: TorchRec is not installed.
        PlanError: The plan does not fit the model, or TorchRec would not follow it.
    """
    tables = _tables_of(model)
    domain = devices_per_domain or devices_per_node
    checked = check_plan(plan, tables, plan.world_size, domain)
    foreign = export_plan(checked, tables, devices_per_node, device_kind, module_path, domain)
    types = _load_types()
    modules: dict[str, Any] = {}
    for parameter in foreign.parameters:
        spec = None
        if parameter.shards is not None:
            spec = types.EnumerableShardingSpec(
                [
                    types.ShardMetadata(
                        shard_offsets=[shard.row_offset, shard.column_offset],
                        shard_sizes=[shard.rows, shard.columns],
                        placement=shard.placement,
                    )
                    for shard in parameter.shards
                ]
            )
        module = modules.setdefault(parameter.module, types.EmbeddingModuleShardingPlan())
        module[parameter.table] = types.ParameterSharding(
            sharding_type=parameter.sharding_type.value,
            compute_kernel=parameter.compute_kernel,
            ranks=list(parameter.ranks or ()),
            sharding_spec=spec,
            cache_params=(
                None
                if parameter.cache_load_factor is None
                else types.CacheParams(load_factor=parameter.cache_load_factor)
            ),
        )
    return types.ShardingPlan(modules)


def _tables_of(model: DlrmModel | Sequence[EmbeddingTable]) -> Sequence[EmbeddingTable]:
    from dse.model import DlrmModel

    return model.tables if isinstance(model, DlrmModel) else model


def _parameter(module: str, table: str, sharding: Any) -> TorchRecParameter:
    try:
        kind = ShardingType(sharding.sharding_type)
    except ValueError:
        known = ", ".join(f"`{kind.value}`" for kind in ShardingType)
        raise PlanError(
            f"table `{table}`: unknown sharding type `{sharding.sharding_type}`; one of {known} "
            "is expected"
        ) from None
    spec = sharding.sharding_spec
    if spec is not None and not hasattr(spec, "shards"):
        raise PlanError(
            f"table `{table}`: its sharding spec is a {type(spec).__name__}, which does not list "
            "shards; an EnumerableShardingSpec is expected"
        )
    return TorchRecParameter(
        module=module,
        table=table,
        sharding_type=kind,
        compute_kernel=str(sharding.compute_kernel),
        ranks=None if sharding.ranks is None else tuple(int(rank) for rank in sharding.ranks),
        shards=None if spec is None else tuple(_shard(table, shard) for shard in spec.shards),
        cache_load_factor=getattr(sharding.cache_params, "load_factor", None),
    )


def _shard(table: str, shard: Any) -> TorchRecShard:
    if len(shard.shard_offsets) != 2 or len(shard.shard_sizes) != 2:
        raise PlanError(
            f"table `{table}`: shard sizes {list(shard.shard_sizes)} are not rows and columns"
        )
    return TorchRecShard(
        row_offset=int(shard.shard_offsets[0]),
        rows=int(shard.shard_sizes[0]),
        column_offset=int(shard.shard_offsets[1]),
        columns=int(shard.shard_sizes[1]),
        placement=str(shard.placement),
    )


def _load_types() -> Any:
    try:
        from torchrec.distributed import types
    except (ImportError, OSError) as error:
        # fbgemm-gpu raises OSError when its libraries do not fit the machine.
        raise OptionalDependencyError(
            f"TorchRec's plan objects need torchrec, which cannot be imported here ({error}); "
            "docs/torchrec.md has the commands, or write the plan as JSON with plan_to_torchrec"
        ) from error
    return types
