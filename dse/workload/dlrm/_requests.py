"""Planning requests of a problem under constraints on its tables."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.sharding import total_device_bytes
from dse.workload.dlrm.scoring._scorer import PlanScorer

if TYPE_CHECKING:
    from dse.sharding import PlanningRequest, ShardingType, TableConstraints
    from dse.workload.dlrm._problem import DlrmProblem


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
