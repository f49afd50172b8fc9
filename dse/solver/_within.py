"""Search within constraints: one table after the other takes the best place it may have.

It asks :func:`dse.sharding.placements_allowed` for every move, so pinned ranks, allowed kernels
and widths of column pieces hold by construction, tables in host memory included. It descends from
every start, the best first, and then from the best plan with some tables placed at random, until a
budget of scored plans is used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import PLANNERS, ShardingType, placements_allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from dse.prediction import PlanScorer
    from dse.sharding import AllowedPlacement, PlanningRequest, ShardingPlan

#: Passes over all tables at most, in one descent.
_MAX_PASSES = 20

#: Ranks tried for a whole table, the least loaded first.
_MAX_RANKS = 64

#: Groups of ranks tried for column pieces.
_MAX_WINDOWS = 8

#: Descents from the best plan with some tables placed at random.
_KICKS = 24

#: Plans scored after which the search ends.
_BUDGET = 50_000

#: Share of the tables, and their least number, that are placed at random.
_KICKED_SHARE = 0.15
_KICKED_TABLES = 2

#: Least relative gain that counts.
_LEAST_GAIN = 1e-9

#: What one whole memory of overflow counts against a plan that does not fit, in seconds.
_OVERFLOW_S = 1e6


def search_within(
    scorer: PlanScorer,
    request: PlanningRequest,
    starts: Sequence[tuple[str, ShardingPlan]],
    out_of_time: Callable[[], bool],
) -> tuple[ShardingPlan, str, int]:
    """Finds a plan that keeps to a request.

    Args:
        scorer: The performance model of the problem.
        request: What may be placed where.
        starts: Plans to start from beside those of the baselines, each with its name.
        out_of_time: Says when to stop; at least the baselines are compared.

    Returns:
        The plan, how it was found, and how many plans were scored.
    """
    named = [*starts, *((name, planner(request)) for name, planner in PLANNERS.items())]
    search = _Search(scorer, request, out_of_time)
    vectors = np.array([scorer.placements.options_of(plan) for _, plan in named])
    values = search.badness(vectors)
    order = np.argsort(values, kind="stable").tolist()
    first = order[0]
    options, value = vectors[first], float(values[first])
    for start in order:
        found, reached = search.descend(vectors[start], float(values[start]))
        if reached < value * (1 - _LEAST_GAIN):
            options, value = found, reached
    rng = np.random.default_rng(request.seed)
    for _ in range(_KICKS):
        if search.over():
            break
        kicked = search.kick(options, rng)
        found, reached = search.descend(kicked, float(search.badness(kicked[None, :])[0]))
        if reached < value * (1 - _LEAST_GAIN):
            options, value = found, reached
    improved = value < float(values[first]) * (1 - _LEAST_GAIN)
    label = named[first][0] + (" + search within constraints" if improved else "")
    return scorer.placements.plan_of(options), label, search.scored


class _Search:
    """Moves of single tables within a request."""

    def __init__(
        self, scorer: PlanScorer, request: PlanningRequest, out_of_time: Callable[[], bool]
    ) -> None:
        self.scored = 0
        self._scorer = scorer
        self._names = [table.name for table in request.tables]
        self._allowed = [placements_allowed(index, request) for index in range(len(self._names))]
        self._out_of_time = out_of_time

    def over(self) -> bool:
        """Returns whether time or budget is used up."""
        return self.scored >= _BUDGET or self._out_of_time()

    def descend(self, options: NDArray[np.int64], value: float) -> tuple[NDArray[np.int64], float]:
        """Gives each table in turn its best place until none gains; the busiest ranks' first."""
        for _ in range(_MAX_PASSES):
            before = value
            for index in _hottest_first(self._scorer, options):
                if self.over():
                    return options, value
                moves = self._moves(index, options)
                moved = np.repeat(options[None, :], len(moves), axis=0)
                moved[:, index] = moves
                values = self.badness(moved)
                winner = int(np.argmin(values))
                if values[winner] < value * (1 - _LEAST_GAIN):
                    options, value = moved[winner], float(values[winner])
            if value >= before:
                break
        return options, value

    def kick(self, options: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Returns the plan with some tables placed at random."""
        count = max(_KICKED_TABLES, round(_KICKED_SHARE * len(options)))
        kicked = options.copy()
        for index in rng.permutation(len(options))[:count].tolist():
            kicked[index] = rng.choice(self._moves(index, kicked))
        return kicked

    def badness(self, options: NDArray[np.int64]) -> NDArray[np.float64]:
        """Iteration time of plans that fit; others rank behind them by how much they overflow."""
        scorer = self._scorer
        cluster = scorer.problem.cluster
        self.scored += len(options)
        scores = scorer.score_options(options)
        overflow = np.maximum(
            0.0, scores.peak_memory_bytes / cluster.device.usable_memory_bytes - 1.0
        )
        if cluster.host_memory_bytes is not None:
            features = scorer.placements.features(options)
            overflow = overflow + scorer.memory.host_overflow(features, cluster)
        return np.asarray(scores.iteration_time_s + _OVERFLOW_S * overflow)

    def _moves(self, index: int, options: NDArray[np.int64]) -> list[int]:
        load_s = self._scorer.rank_load_s(options)
        placements = self._scorer.placements
        return list(
            dict.fromkeys(
                placements.option(index, placement.on(self._names[index], ranks))
                for placement in self._allowed[index]
                for ranks in _places(placement, load_s)
            )
        )


def _hottest_first(scorer: PlanScorer, options: NDArray[np.int64]) -> list[int]:
    load_s = scorer.rank_load_s(options)
    heat = [
        max(load_s[rank] for rank in table.ranks)
        for table in scorer.placements.plan_of(options).tables
    ]
    return sorted(range(len(heat)), key=lambda index: (-heat[index], index))


def _places(placement: AllowedPlacement, load_s: NDArray[np.float64]) -> Iterator[tuple[int, ...]]:
    """Yields ranks for a placement, by the ranks' present loads."""

    def lightest(ranks: Sequence[int]) -> list[int]:
        return sorted(ranks, key=lambda rank: (load_s[rank], rank))

    kind, sets = placement.sharding_type, placement.rank_sets
    if kind is ShardingType.TABLE_WISE:
        for rank in lightest([ranks[0] for ranks in sets])[:_MAX_RANKS]:
            yield (rank,)
    elif kind in (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE):
        for ranks in sets:
            for pieces in placement.column_pieces:
                if pieces <= len(ranks):
                    yield from _windows(lightest(ranks), pieces)
    elif kind is ShardingType.GRID_SHARD:
        nodes = sorted(sets, key=lambda ranks: (sum(load_s[rank] for rank in ranks), ranks))
        for pieces in placement.column_pieces:
            yield tuple(rank for ranks in nodes[:pieces] for rank in ranks)
    else:
        yield from sets


def _windows(ranks: list[int], pieces: int) -> Iterator[tuple[int, ...]]:
    """Yields ranks that follow each other by load, the lightest first, around the end."""
    around = [*ranks, *ranks]
    for start in range(min(len(ranks), _MAX_WINDOWS)):
        yield tuple(around[start : start + pieces])
