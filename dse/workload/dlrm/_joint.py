"""Placements of tables as parameters: the sampler cuts, a greedy rule finds the ranks.

Each table brings one parameter, whose values are the types and numbers of column shards that may
be tried for it. Ranks are no choices: equal ranks would make equal plans under many names. They
are assigned table by table, the costliest first, to the least loaded rank with room, once for each
of several costs; the fastest of these plans that fits is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.sharding import (
    Cut,
    PlanningRequest,
    ShardingType,
    largest_shard_bytes,
    placements_allowed,
    plan_greedily,
)
from dse.workload._parameters import Parameter
from dse.workload._workload import PLACEMENT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dse.model import DlrmModel, EmbeddingTable
    from dse.sharding import ShardingPlan
    from dse.workload.dlrm.scoring._scorer import PlanScorer

#: More parameters than this are too many for a sampler to learn from some hundred trials.
MAX_JOINT_TABLES = 30

#: Between the type and the number of column shards in a value.
_SHARDS_SEPARATOR = "/"

#: Costs of a table by which ranks are balanced.
_COSTS: dict[str, Callable[[EmbeddingTable], float]] = {
    "lookups": lambda table: table.lookups_per_sample * table.dim,
    "output width": lambda table: float(table.dim * table.vectors_per_sample),
    "size": lambda table: float(table.rows * table.dim),
}


def placement_parameters(
    model: DlrmModel, types: frozenset[ShardingType], clusters: Sequence[tuple[int, int]]
) -> tuple[Parameter, ...]:
    """Returns one parameter for each table of a model: how it is sharded.

    Args:
        model: What is trained.
        types: Sharding types that may be used.
        clusters: Ranks and devices per node of every cluster that may be chosen.

    Raises:
        ConfigError: The model has too many tables.
    """
    if len(model.tables) > MAX_JOINT_TABLES:
        raise ConfigError(
            f"search.plan: `joint` places at most {MAX_JOINT_TABLES} tables, and {model.name} has "
            f"{len(model.tables)}; use `plan: solver`"
        )
    requests = [
        PlanningRequest(
            tables=model.tables,
            optimizer=model.sparse_optimizer,
            world_size=world_size,
            devices_per_node=devices_per_node,
            allowed_types=types,
            embedding_memory_bytes=0.0,
        )
        for world_size, devices_per_node in clusters
    ]
    return tuple(
        Parameter(PLACEMENT_PREFIX + table.name, tuple(_labels(index, requests)))
        for index, table in enumerate(model.tables)
    )


def joint_plan(
    scorer: PlanScorer, request: PlanningRequest, placements: Mapping[str, str]
) -> tuple[ShardingPlan, str]:
    """Returns the plan that the chosen placements make, and how its ranks were found.

    A table that is to be cut into more column shards than these machines allow is cut into as many
    as they do.

    Args:
        scorer: The performance model of the problem.
        request: What is placed where.
        placements: How each table is sharded, by its name.
    """
    cuts = [
        _cut(index, request, placements[table.name]) for index, table in enumerate(request.tables)
    ]
    plans = [plan_greedily(request, cost, cuts=cuts) for cost in _COSTS.values()]
    scores = scorer.score(plans)
    # Plans that do not fit rank behind all others, by what they need.
    penalized_s = np.where(
        scores.fits,
        scores.iteration_time_s,
        scores.iteration_time_s.max() + scores.peak_memory_bytes,
    )
    best = int(np.argmin(penalized_s))
    return plans[best], f"joint, ranks by {list(_COSTS)[best]}"


def _labels(table_index: int, requests: list[PlanningRequest]) -> Iterator[str]:
    """Yields the values of one table's parameter: all that some machine of the space allows."""
    shards: dict[ShardingType, set[int]] = {}
    for request in requests:
        for placement in placements_allowed(table_index, request):
            shards.setdefault(placement.sharding_type, set()).update(placement.column_shards)
    for kind, counts in shards.items():
        # A single shard is what is left on machines too small for a cut; elsewhere it is no cut.
        for count in sorted(counts - {1} or counts):
            yield kind.value if count == 1 else f"{kind.value}{_SHARDS_SEPARATOR}{count}"


def _cut(table_index: int, request: PlanningRequest, label: str) -> Cut:
    name, _, count = label.partition(_SHARDS_SEPARATOR)
    wanted = int(count or 1)
    kind = ShardingType(name)
    placement = next(
        each for each in placements_allowed(table_index, request) if each.sharding_type is kind
    )
    shards = max(
        (offered for offered in placement.column_shards if offered <= wanted),
        default=placement.column_shards[0],
    )
    size_bytes = largest_shard_bytes(request.tables[table_index], placement, shards, request)
    return Cut(placement, shards, size_bytes)
