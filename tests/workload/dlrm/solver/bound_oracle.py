"""Every plan of a small problem, or many of a larger one, for tests of bounds."""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType, placements_allowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.sharding import PlanningRequest, TablePlan
    from dse.workload.dlrm import PlanScorer


def placements(index: int, request: PlanningRequest) -> Iterator[TablePlan]:
    """Yields every placement of a table that the request allows."""
    name = request.tables[index].name
    for way in placements_allowed(index, request):
        for pieces in way.column_pieces:
            if way.sharding_type is ShardingType.GRID_SHARD:
                for chosen in product(way.rank_sets, repeat=pieces):
                    yield way.on(name, [rank for ranks in chosen for rank in ranks])
            elif way.sharding_type in (
                ShardingType.COLUMN_WISE,
                ShardingType.TABLE_COLUMN_WISE,
            ):
                for home in way.rank_sets:
                    for ranks in product(home, repeat=pieces):
                        yield way.on(name, ranks)
            else:
                yield from (way.on(name, ranks) for ranks in way.rank_sets)


def best_time_s(scorer: PlanScorer, request: PlanningRequest, limit: int, seed: int = 0) -> float:
    """Returns the shortest iteration of plans that fit, infinite when none does.

    Args:
        scorer: The performance model.
        request: What is allowed.
        limit: Plans to look at; all of them when there are not more, drawn ones otherwise.
        seed: Of the draw.
    """
    options = [
        np.array([scorer.placements.option(index, plan) for plan in placements(index, request)])
        for index in range(len(request.tables))
    ]
    total = int(np.prod([float(len(choices)) for choices in options]))
    if total <= limit:
        plans = np.array(list(islice(product(*options), limit)))
    else:
        rng = np.random.default_rng(seed)
        # Half of them favour one type, as good plans do.
        columns = [rng.choice(choices, limit) for choices in options]
        plans = np.stack(columns, axis=1)
        for index, choices in enumerate(options):
            few = rng.choice(choices, 2)
            plans[: limit // 2, index] = rng.choice(few, limit // 2)
    scores = scorer.score_options(plans)
    return float(np.min(scores.iteration_time_s, where=scores.fits, initial=np.inf))
