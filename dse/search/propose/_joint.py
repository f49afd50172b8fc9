"""Placements of tables as outer choices: the sampler cuts, a greedy rule finds the ranks.

Each table brings one parameter, whose values are the types and numbers of column pieces that may
be tried for it. Ranks are no choices: equal ranks would make equal plans under many names. They
are dealt out table by table, the costliest first, to the least loaded rank with room, once by each
of several costs; the model keeps the fastest of these plans that fits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.search.space import PLACEMENT_PREFIX, TYPE_SEPARATOR, Parameter
from dse.sharding import (
    Cut,
    PlanningRequest,
    ShardingType,
    largest_shard_bytes,
    placements_allowed,
    plan_greedily,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, EmbeddingTable
    from dse.search.space import ParameterValue, SearchSpace
    from dse.sharding import ShardingPlan
    from dse.workload.dlrm import PlanScorer

#: More parameters than this are too many for a sampler to learn from some hundred trials.
MAX_JOINT_TABLES = 30

#: Between the type and the number of column pieces in a value.
_PIECES_SEPARATOR = "/"

#: Costs of a table by which ranks are balanced.
_COSTS: dict[str, Callable[[EmbeddingTable], float]] = {
    "lookups": lambda table: table.lookups_per_sample * table.dim,
    "output width": lambda table: float(table.dim * table.feature_count),
    "size": lambda table: float(table.rows * table.dim),
}


def with_placements(
    space: SearchSpace, model: DlrmModel, platforms: Mapping[str, Platform], place: str
) -> SearchSpace:
    """Returns the space with one more parameter for each table of the model.

    Args:
        space: A space with `plan: joint`.
        model: What is trained.
        platforms: Every platform that the space names.
        place: Where `search.plan` stands, for messages.

    Raises:
        ConfigError: The model has too many tables, or the space several sets of sharding types.
    """
    if len(model.tables) > MAX_JOINT_TABLES:
        raise ConfigError(
            f"{place}: search.plan: `joint` places at most {MAX_JOINT_TABLES} tables, and "
            f"{model.name} has {len(model.tables)}; use `plan: solver`"
        )
    sets = space.choices("sharding_types")
    if len(sets) > 1:
        raise ConfigError(
            f"{place}: with `plan: joint` every table chooses its own type; give one set of "
            f"sharding types instead of {len(sets)}"
        )
    allowed = frozenset(ShardingType(name) for name in str(sets[0]).split(TYPE_SEPARATOR))
    requests = [
        PlanningRequest(
            tables=model.tables,
            optimizer=model.sparse_optimizer,
            world_size=int(world_size),
            devices_per_node=platforms[str(platform)].devices_per_node,
            allowed_types=allowed,
            embedding_memory_bytes=0.0,
        )
        for platform in space.choices("platform")
        for world_size in space.choices("world_size")
    ]
    placements = tuple(
        Parameter(PLACEMENT_PREFIX + table.name, tuple(_labels(index, requests)))
        for index, table in enumerate(model.tables)
    )
    return replace(space, parameters=(*space.parameters, *placements))


def joint_plan(
    scorer: PlanScorer, request: PlanningRequest, parameters: Mapping[str, ParameterValue]
) -> tuple[ShardingPlan, str]:
    """Returns the plan that the chosen placements make, and how its ranks were found.

    A table that is to be cut into more column pieces than these machines allow is cut into as many
    as they do.

    Args:
        scorer: The performance model of the problem.
        request: What is placed where.
        parameters: Value of every outer parameter.
    """
    cuts = [
        _cut(index, request, str(parameters[PLACEMENT_PREFIX + table.name]))
        for index, table in enumerate(request.tables)
    ]
    plans = [plan_greedily(request, cost, cuts=cuts) for cost in _COSTS.values()]
    scores = scorer.score(plans)
    # Plans that do not fit rank behind all others, by what they need.
    badness = np.where(
        scores.fits,
        scores.iteration_time_s,
        scores.iteration_time_s.max() + scores.peak_memory_bytes,
    )
    best = int(np.argmin(badness))
    return plans[best], f"joint, ranks by {list(_COSTS)[best]}"


def _labels(table_index: int, requests: list[PlanningRequest]) -> Iterator[str]:
    """Yields the values of one table's parameter: all that some machine of the space allows."""
    pieces: dict[ShardingType, set[int]] = {}
    for request in requests:
        for placement in placements_allowed(table_index, request):
            pieces.setdefault(placement.sharding_type, set()).update(placement.column_shards)
    for kind, counts in pieces.items():
        # A single piece is what is left on machines too small for a cut; elsewhere it is no cut.
        for count in sorted(counts - {1} or counts):
            yield kind.value if count == 1 else f"{kind.value}{_PIECES_SEPARATOR}{count}"


def _cut(table_index: int, request: PlanningRequest, label: str) -> Cut:
    name, _, count = label.partition(_PIECES_SEPARATOR)
    wanted = int(count or 1)
    kind = ShardingType(name)
    placement = next(
        each for each in placements_allowed(table_index, request) if each.sharding_type is kind
    )
    pieces = max(
        (offered for offered in placement.column_shards if offered <= wanted),
        default=placement.column_shards[0],
    )
    size_bytes = largest_shard_bytes(request.tables[table_index], placement, pieces, request)
    return Cut(placement, pieces, size_bytes)
