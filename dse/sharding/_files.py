"""Plan files: our own JSON, and TorchRec's fields.

Both are read by :func:`read_plan`. TorchRec's form mirrors `ParameterSharding`: sharding type,
compute kernel, ranks, and an enumerable sharding spec with offsets, sizes and placement of every
shard (none for data-parallel tables).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dse.documents import StrictModel, parse_json
from dse.errors import ConfigError, PlanError
from dse.sharding._pieces import pieces_of
from dse.sharding._plan import ComputeKernel, ShardingPlan, ShardingType, TablePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workloads import EmbeddingTable

#: Module that holds the tables in TorchRec's DLRM.
TORCHREC_MODULE = "model.sparse_arch.embedding_bag_collection"

Rank = Annotated[int, Field(ge=0, lt=2**20)]
Ranks = Annotated[list[Rank], Field(min_length=1, max_length=2**20)]


class TableBlock(StrictModel):
    """Placement of one table in our form."""

    sharding_type: ShardingType
    ranks: Ranks
    compute_kernel: ComputeKernel = ComputeKernel.FUSED


class PlanDocument(StrictModel):
    """A plan in our form."""

    schema_version: Literal[1]
    model: str = ""
    world_size: Annotated[int, Field(ge=1, lt=2**20)]
    tables: dict[str, TableBlock]


class ShardBlock(StrictModel):
    """One shard in TorchRec's form."""

    shard_offsets: list[int]
    shard_sizes: list[int]
    placement: str


class SpecBlock(StrictModel):
    """An enumerable sharding spec."""

    shards: list[ShardBlock]


class ParameterShardingBlock(StrictModel):
    """TorchRec's `ParameterSharding`."""

    sharding_type: ShardingType
    compute_kernel: ComputeKernel
    ranks: Ranks | None
    sharding_spec: SpecBlock | None


class TorchRecDocument(StrictModel):
    """TorchRec's `ShardingPlan`: module path → table → placement."""

    world_size: Annotated[int, Field(ge=1, lt=2**20)]
    plan: dict[str, dict[str, ParameterShardingBlock]]


def plan_to_json(plan: ShardingPlan, model_name: str) -> str:
    """Returns a plan in our own form."""
    document = {
        "schema_version": 1,
        "model": model_name,
        "world_size": plan.world_size,
        "tables": {
            table.table: {
                "sharding_type": table.sharding_type.value,
                "ranks": list(table.ranks),
                "compute_kernel": table.compute_kernel.value,
            }
            for table in plan.tables
        },
    }
    return json.dumps(document, indent=1) + "\n"


def plan_to_torchrec(
    plan: ShardingPlan,
    tables: Sequence[EmbeddingTable],
    devices_per_node: int,
    device_kind: str = "cuda",
) -> str:
    """Returns a plan with the fields of TorchRec's `ShardingPlan`.

    Args:
        plan: A checked plan.
        tables: The model's tables, in the plan's order.
        devices_per_node: Ranks of a full node; gives the local device of a placement.
        device_kind: `cuda` or `cpu`.
    """
    module: dict[str, object] = {}
    for placement, table in zip(plan.tables, tables, strict=True):
        spec = None
        if placement.sharding_type is not ShardingType.DATA_PARALLEL:
            spec = {
                "shards": [
                    {
                        "shard_offsets": [piece.row_offset, piece.column_offset],
                        "shard_sizes": [piece.rows, piece.columns],
                        "placement": _device(piece.rank, devices_per_node, device_kind),
                    }
                    for piece in pieces_of(placement, table, devices_per_node)
                ]
            }
        module[placement.table] = {
            "sharding_type": placement.sharding_type.value,
            "compute_kernel": placement.compute_kernel.value,
            "ranks": list(placement.ranks),
            "sharding_spec": spec,
        }
    document = {"world_size": plan.world_size, "plan": {TORCHREC_MODULE: module}}
    return json.dumps(document, indent=1) + "\n"


def read_plan(path: str | Path) -> ShardingPlan:
    """Reads a plan file in either form.

    Raises:
        ConfigError: The file is missing, not JSON, or not a plan; with the place.
        PlanError: A table appears in two modules of a TorchRec plan.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{file}: cannot read the plan: {reason}") from error
    if '"plan"' in text and '"schema_version"' not in text:
        return _from_torchrec(parse_json(text, TorchRecDocument, file=str(file)))
    document = parse_json(text, PlanDocument, file=str(file))
    return ShardingPlan(
        document.world_size,
        tuple(
            TablePlan(name, block.sharding_type, tuple(block.ranks), block.compute_kernel)
            for name, block in document.tables.items()
        ),
    )


def _from_torchrec(document: TorchRecDocument) -> ShardingPlan:
    placements: dict[str, TablePlan] = {}
    for module, tables in document.plan.items():
        for name, block in tables.items():
            if name in placements:
                raise PlanError(f"table `{name}` appears twice, again in module `{module}`")
            ranks = block.ranks
            if ranks is None or block.sharding_type is ShardingType.DATA_PARALLEL:
                ranks = list(range(document.world_size))
            placements[name] = TablePlan(
                name, block.sharding_type, tuple(ranks), block.compute_kernel
            )
    return ShardingPlan(document.world_size, tuple(placements.values()))


def _device(rank: int, devices_per_node: int, device_kind: str) -> str:
    if device_kind == "cpu":
        return f"rank:{rank}/cpu"
    return f"rank:{rank}/{device_kind}:{rank % devices_per_node}"
