"""Plan files: dse's JSON and TorchRec's; :func:`read_plan` recognises both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dse._io.reading import read_text
from dse.config import MAX_COUNT, StrictModel, parse_json
from dse.errors import PlanError
from dse.sharding._kernels import KernelName
from dse.sharding._plan import ComputeKernel, ShardingPlan, ShardingType, TablePlan
from dse.sharding.torchrec import (
    TORCHREC_MODULE,
    LoadFactor,
    Ranks,
    WorldSize,
    export_plan,
    import_plan,
    is_torchrec,
    parse_torchrec,
    render_torchrec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.model import EmbeddingTable
    from dse.sharding.torchrec import DmpCollection


class TableBlock(StrictModel):
    """Placement of one table in dse's JSON."""

    sharding_type: ShardingType
    ranks: Ranks
    compute_kernel: KernelName = ComputeKernel.FUSED
    cache_load_factor: LoadFactor | None = None
    hot_rows: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0


class PlanDocument(StrictModel):
    """A plan in dse's JSON."""

    schema_version: Literal[1]
    model: str = ""
    world_size: WorldSize
    tables: dict[str, TableBlock]


def plan_to_json(plan: ShardingPlan, model_name: str) -> str:
    """Returns a plan as dse's JSON."""
    document = {
        "schema_version": 1,
        "model": model_name,
        "world_size": plan.world_size,
        "tables": {table.table: _table_block(table) for table in plan.tables},
    }
    return json.dumps(document, indent=1) + "\n"


def plan_to_torchrec(
    plan: ShardingPlan,
    tables: Sequence[EmbeddingTable],
    devices_per_node: int,
    device_kind: str = "cuda",
    module_path: str | Mapping[str, str] = TORCHREC_MODULE,
    devices_per_domain: int | None = None,
    qcomms: Mapping[str, tuple[str, str]] | None = None,
    groups: DmpCollection | None = None,
) -> str:
    """Returns a plan as JSON with the fields of TorchRec's `ShardingPlan`.

    Args:
        plan: A checked plan.
        tables: The model's tables, in the plan's order.
        devices_per_node: Ranks of a full node; gives the local device of a placement.
        device_kind: `cuda` or `cpu`.
        module_path: Path of the module that holds the tables, or the path for each table's name.
        devices_per_domain: Ranks of a full pod, which tables over a node's ranks then span; those
            of a node by default.
        qcomms: Precisions forward and backward by the name of TorchRec's `CommOp`, where
            collectives are quantized.
        groups: How several groups of ranks are trained under the plan; None for one.

    Raises:
        PlanError: TorchRec would not do what the plan says.
    """
    return render_torchrec(
        export_plan(plan, tables, devices_per_node, device_kind, module_path, devices_per_domain),
        qcomms,
        groups,
    )


def read_plan(path: str | Path, tables: Sequence[EmbeddingTable] | None = None) -> ShardingPlan:
    """Reads a plan file of either format.

    Args:
        path: The file.
        tables: The model's tables. With them the shards of a TorchRec plan are checked against
            their rows and columns, and tables of several modules are found by qualified names.

    Raises:
        ConfigError: The file is missing, not JSON, or not a plan; with the place.
        PlanError: A TorchRec plan is for other tables, or has shards that cannot be predicted.
    """
    file = Path(path)
    text = read_text(file)
    if is_torchrec(text):
        foreign = parse_torchrec(text, str(file))
        try:
            return import_plan(foreign, tables)
        except PlanError as error:
            raise PlanError(f"{file}: {error}") from error
    document = parse_json(text, PlanDocument, file=str(file))
    return ShardingPlan(
        document.world_size,
        tuple(
            TablePlan(
                name,
                block.sharding_type,
                tuple(block.ranks),
                block.compute_kernel,
                block.cache_load_factor,
                block.hot_rows,
            )
            for name, block in document.tables.items()
        ),
    )


def _table_block(table: TablePlan) -> dict[str, object]:
    block: dict[str, object] = {
        "sharding_type": table.sharding_type.value,
        "ranks": list(table.ranks),
        "compute_kernel": table.compute_kernel.value,
    }
    if table.cache_load_factor is not None:
        block["cache_load_factor"] = table.cache_load_factor
    if table.hot_rows:
        block["hot_rows"] = table.hot_rows
    return block
