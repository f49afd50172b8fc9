"""TorchRec's `ShardingPlan` as plain values, and as JSON.

Two forms of the JSON are read. The one that :func:`render_torchrec` writes mirrors the field names
of `ParameterSharding`, with the shards under `sharding_spec`. The other is the result of
TorchRec's `ShardingPlan._serialize`, with the shards next to the ranks and without the number of
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from dse._io.reading import JsonProblemError, load_json
from dse.config import MAX_COUNT, MAX_RANKS, StrictModel, parse_json
from dse.sharding._plan import ShardingType

if TYPE_CHECKING:
    from collections.abc import Mapping

Rank = Annotated[int, Field(ge=0, lt=MAX_RANKS)]
Ranks = Annotated[list[Rank], Field(min_length=1, max_length=MAX_RANKS)]
WorldSize = Annotated[int, Field(ge=1, le=MAX_RANKS)]
LoadFactor = Annotated[float, Field(gt=0, le=1)]
_Offset = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Pair = Annotated[list[_Offset], Field(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True)
class TorchRecShard:
    """TorchRec's `ShardMetadata` of a table.

    Attributes:
        row_offset: First row.
        rows: Number of rows.
        column_offset: First column.
        columns: Number of columns.
        placement: Rank and device, such as `rank:3/cuda:1`.
    """

    row_offset: int
    rows: int
    column_offset: int
    columns: int
    placement: str


@dataclass(frozen=True, slots=True)
class DmpCollection:
    """Arguments of TorchRec's `DMPCollection`, which trains several groups under one plan each.

    Attributes:
        world_size: Ranks of all groups.
        sharding_group_size: Ranks of a group, those of the plan.
        node_group_size: Ranks of a group on one node, or pod.
        use_inter_host_allreduce: Whether a group's ranks are neighbours, so that copies are
            averaged between nodes; otherwise groups are spread over all nodes.
        sync_interval: Steps from one call of `sync` to the next.
        include_optimizer_state: Argument of `sync`.
    """

    world_size: int
    sharding_group_size: int
    node_group_size: int
    use_inter_host_allreduce: bool
    sync_interval: int
    include_optimizer_state: bool


@dataclass(frozen=True, slots=True)
class TorchRecParameter:
    """TorchRec's `ParameterSharding` of one table of one module.

    Attributes:
        module: Path of the module in the model; empty for the model itself.
        table: Name of the table in its module.
        sharding_type: How it is cut.
        compute_kernel: Kernel with TorchRec's spelling; not all are modelled.
        ranks: Rank of each shard, if given.
        shards: The shards, if given; data-parallel tables have none.
        cache_load_factor: Share of the rows that a caching kernel keeps on the device, if given.
    """

    module: str
    table: str
    sharding_type: ShardingType
    compute_kernel: str
    ranks: tuple[int, ...] | None
    shards: tuple[TorchRecShard, ...] | None
    cache_load_factor: float | None = None


@dataclass(frozen=True, slots=True)
class TorchRecPlan:
    """TorchRec's `ShardingPlan`, and the number of ranks where it is known."""

    world_size: int | None
    parameters: tuple[TorchRecParameter, ...]


class ShardBlock(StrictModel):
    """`ShardMetadata`: rows first, then columns."""

    shard_offsets: _Pair
    shard_sizes: _Pair
    placement: str


class SpecBlock(StrictModel):
    """`EnumerableShardingSpec`."""

    shards: list[ShardBlock]


class CacheParamsBlock(StrictModel):
    """`CacheParams`; only the share of cached rows is used."""

    load_factor: LoadFactor | None = None
    algorithm: Any = None
    reserved_memory: Any = None
    precision: Any = None
    prefetch_pipeline: Any = None
    stats: Any = None
    multipass_prefetch_config: Any = None


class ParameterShardingBlock(StrictModel):
    """`ParameterSharding`; fields that tune the kernels of a running job are ignored."""

    sharding_type: ShardingType
    compute_kernel: str
    ranks: Ranks | None = None
    sharding_spec: SpecBlock | None = None
    shards: list[ShardBlock] | None = None
    cache_params: CacheParamsBlock | None = None
    enforce_hbm: Any = None
    stochastic_rounding: Any = None
    bounds_check_mode: Any = None
    output_dtype: Any = None
    key_value_params: Any = None


class QCommsBlock(StrictModel):
    """`QCommsConfig` of one collective; not part of the plan."""

    forward_precision: str
    backward_precision: str


class TorchRecDocument(StrictModel):
    """`ShardingPlan`: module path → table → placement; and what its collectives carry.

    What is said of groups is for the training script.
    """

    world_size: WorldSize | None = None
    dmp_collection: Any = None
    sync: Any = None
    plan: dict[str, dict[str, ParameterShardingBlock]]
    qcomms: dict[str, QCommsBlock] | None = None


def is_torchrec(text: str) -> bool:
    """Returns whether a JSON text is a TorchRec plan, by its top-level keys."""
    try:
        data = load_json(text)
    except JsonProblemError:
        return False
    return isinstance(data, dict) and "plan" in data and "schema_version" not in data


def parse_torchrec(text: str, file: str) -> TorchRecPlan:
    """Parses a plan in either form.

    Args:
        text: JSON.
        file: Name for messages.

    Raises:
        ConfigError: The text is not a plan; with the place of every problem.
    """
    document = parse_json(text, TorchRecDocument, file=file)
    return TorchRecPlan(
        document.world_size,
        tuple(
            TorchRecParameter(
                module=module,
                table=table,
                sharding_type=block.sharding_type,
                compute_kernel=block.compute_kernel,
                ranks=None if block.ranks is None else tuple(block.ranks),
                shards=_shards(block),
                cache_load_factor=(
                    None if block.cache_params is None else block.cache_params.load_factor
                ),
            )
            for module, tables in document.plan.items()
            for table, block in tables.items()
        ),
    )


def render_torchrec(
    plan: TorchRecPlan,
    qcomms: Mapping[str, tuple[str, str]] | None,
    groups: DmpCollection | None,
) -> str:
    """Returns the JSON of a plan, with the field names of TorchRec's classes.

    Args:
        plan: The plan.
        qcomms: Precisions forward and backward by the name of a `CommOp`, if any.
        groups: How several groups are trained under it; None for one.
    """
    modules: dict[str, dict[str, object]] = {}
    for parameter in plan.parameters:
        spec = None
        if parameter.shards is not None:
            spec = {
                "shards": [
                    {
                        "shard_offsets": [shard.row_offset, shard.column_offset],
                        "shard_sizes": [shard.rows, shard.columns],
                        "placement": shard.placement,
                    }
                    for shard in parameter.shards
                ]
            }
        block: dict[str, object] = {
            "sharding_type": parameter.sharding_type.value,
            "compute_kernel": parameter.compute_kernel,
            "ranks": None if parameter.ranks is None else list(parameter.ranks),
            "sharding_spec": spec,
        }
        if parameter.cache_load_factor is not None:
            block["cache_params"] = {"load_factor": parameter.cache_load_factor}
        modules.setdefault(parameter.module, {})[parameter.table] = block
    document: dict[str, object] = {"world_size": plan.world_size}
    if groups is not None:
        document["dmp_collection"] = {
            "world_size": groups.world_size,
            "sharding_group_size": groups.sharding_group_size,
            "node_group_size": groups.node_group_size,
            "use_inter_host_allreduce": groups.use_inter_host_allreduce,
        }
        document["sync"] = {
            "interval": groups.sync_interval,
            "include_optimizer_state": groups.include_optimizer_state,
        }
    document["plan"] = modules
    if qcomms:
        document["qcomms"] = {
            op: {"forward_precision": forward, "backward_precision": backward}
            for op, (forward, backward) in qcomms.items()
        }
    return json.dumps(document, indent=1) + "\n"


def _shards(block: ParameterShardingBlock) -> tuple[TorchRecShard, ...] | None:
    shards = block.sharding_spec.shards if block.sharding_spec is not None else block.shards
    if shards is None:
        return None
    return tuple(
        TorchRecShard(
            row_offset=shard.shard_offsets[0],
            rows=shard.shard_sizes[0],
            column_offset=shard.shard_offsets[1],
            columns=shard.shard_sizes[1],
            placement=shard.placement,
        )
        for shard in shards
    )
