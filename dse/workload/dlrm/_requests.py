"""What plans of a problem may do: types, constraints on tables, and the memory that these need."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.sharding import SAME_SHARDS, ShardingType, total_bytes, total_device_bytes
from dse.workload.dlrm._memory import MemoryModel
from dse.workload.dlrm.scoring._scorer import PlanScorer

if TYPE_CHECKING:
    from dse.model import DlrmModel
    from dse.sharding import PlanningRequest, TableConstraints
    from dse.workload.dlrm._problem import DlrmProblem


def on_one_node(types: frozenset[ShardingType]) -> frozenset[ShardingType]:
    """Returns types that allow the same shards on a single node.

    There, columns that stay on a node are any columns, and rows over a node are rows over all
    ranks. With both kinds of rows at hand, tables can still be spread over two collectives.
    """
    found = {SAME_SHARDS.get(kind, kind) for kind in types}
    if ShardingType.ROW_WISE not in found and ShardingType.TABLE_ROW_WISE in found:
        found = found - {ShardingType.TABLE_ROW_WISE} | {ShardingType.ROW_WISE}
    return frozenset(found)


@lru_cache(maxsize=4096)
def fixed_bytes(problem: DlrmProblem) -> float:
    """Returns the bytes of a rank that no plan changes."""
    return MemoryModel.of(problem).fixed_bytes


@lru_cache(maxsize=16)
def tables_bytes(model: DlrmModel) -> float:
    """Returns the bytes of all tables with their optimizer state; cuts only add to them."""
    return total_bytes(model.tables, model.sparse_optimizer)


@lru_cache(maxsize=256)
def least_device_bytes(
    problem: DlrmProblem,
    types: frozenset[ShardingType],
    constraints: tuple[TableConstraints, ...],
) -> float:
    """Returns the device memory that all tables take together, where some may be on the host."""
    return total_device_bytes(constrained_request(PlanScorer(problem), types, constraints))


@lru_cache(maxsize=256)
def check_demands(
    problem: DlrmProblem,
    types: frozenset[ShardingType],
    constraints: tuple[TableConstraints, ...],
) -> None:
    """Checks that constraints leave every table a place.

    Raises:
        ConfigError: They do not.
    """
    from dse.workload.dlrm.solver import check_request

    scorer = PlanScorer(problem)
    check_request(scorer, constrained_request(scorer, types, constraints))


def constrained_request(
    scorer: PlanScorer,
    types: frozenset[ShardingType],
    constraints: tuple[TableConstraints, ...],
    seed: int = 0,
) -> PlanningRequest:
    """Returns what the planners and the bound may place where.

    Args:
        scorer: The performance model of the problem.
        types: Sharding types that may be used.
        constraints: Constraints on tables.
        seed: Of planners that use randomness.
    """
    from dse.workload.dlrm.solver import planning_request

    return replace(planning_request(scorer, types, seed), constraints=constraints)
