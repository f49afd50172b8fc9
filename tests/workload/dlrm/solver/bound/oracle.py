"""Random problems, and the best of all or many of their plans, as an oracle of bounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product
from typing import TYPE_CHECKING

import numpy as np

from dse.indices import IdOrder, Zipf
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.sharding import ShardingType, TableConstraints, placements_allowed
from dse.workload import LaunchMode
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer, TrainPipeline
from dse.workload.dlrm.solver import lower_bound, planning_request
from tests.conftest import make_cluster, make_model, make_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.sharding import AllowedPlacement, PlanningRequest, TablePlan

ALL = frozenset(ShardingType)
TABLE_WISE = ShardingType.TABLE_WISE
TW = frozenset({TABLE_WISE})


def placements(index: int, request: PlanningRequest) -> Iterator[TablePlan]:
    """Yields every placement of a table that the request allows."""
    name = request.tables[index].name
    for way in placements_allowed(index, request):
        for ranks in _ranks(way):
            yield from (way.on(name, ranks, count) for count in way.hot_rows)


def _ranks(way: AllowedPlacement) -> Iterator[Sequence[int]]:
    for pieces in way.column_shards:
        if way.sharding_type is ShardingType.GRID_SHARD:
            for chosen in product(way.rank_sets, repeat=pieces):
                yield [rank for ranks in chosen for rank in ranks]
        elif way.sharding_type in (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE):
            for home in way.rank_sets:
                yield from product(home, repeat=pieces)
        else:
            yield from way.rank_sets


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


def random_tables(rng, count, dims=(16, 20, 32, 64)):
    return tuple(
        make_table(
            f"t{index}",
            rows=int(10 ** rng.uniform(2, 6.3)),
            dim=int(rng.choice(dims)),
            pooling=float(rng.choice([1, 2, 10, 60, 300])),
        )
        for index in range(count)
    )


def skewed(problem, rng):
    """Tables of unequal blocks of rows, some of them with fewer rows than ranks."""
    tables = tuple(
        replace(
            table,
            rows=int(rng.integers(1, 12)) if rng.random() < 0.3 else table.rows,
            indices=Zipf(
                float(rng.choice([0.9, 1.1, 1.4])), ids=IdOrder(rng.choice(list(IdOrder)))
            ),
        )
        for table in problem.model.tables
    )
    return replace(problem, model=replace(problem.model, tables=tables))


def with_hot_rows(problem, rng):
    """Rows of unequal popularity, of which every rank may keep some."""
    tables = tuple(
        replace(table, indices=Zipf(float(rng.uniform(0.6, 1.4)))) if rng.random() < 0.8 else table
        for table in problem.model.tables
    )
    return replace(
        problem,
        model=replace(problem.model, tables=tables),
        software=replace(problem.software, hot_rows=True),
    )


def random_software(rng):
    return DlrmRuntime(
        launch=LaunchMode(rng.choice(list(LaunchMode))),
        overlap_dense_all_reduce=bool(rng.integers(2)),
        pipeline=TrainPipeline(rng.choice(list(TrainPipeline))),
        hierarchical_exchange=bool(rng.integers(2)),
    )


def random_types(rng):
    if rng.random() < 0.3:
        return ALL
    if rng.random() < 0.4:
        return frozenset({ShardingType(rng.choice(list(ShardingType)))})
    return frozenset(kind for kind in ShardingType if rng.random() < 0.5) or TW


def random_problem(rng, table_count, clusters):
    world, per_node = clusters[rng.integers(len(clusters))]
    cluster = make_cluster(world, per_node)
    platform = rng.choice(["made up", "h100_sxm", "a100_sxm_80", "cpu", "v100_dgx1"])
    if platform != "made up" and world <= per_node and (platform != "cpu" or world == 1):
        cluster = load_platform(str(platform)).cluster(world)
    elif platform == "h100_sxm":
        cluster = replace(load_platform("h100_sxm").cluster(world), devices_per_node=per_node)
    tables = random_tables(rng, table_count)
    batch = world * int(rng.choice([16, 512, 4096]))
    problem = DlrmProblem(make_model(tables), cluster, batch, Precision.FP32, random_software(rng))
    if world > per_node:
        # The nodes are one pod, or share an oversubscribed spine, or neither.
        changed = cluster
        level = rng.choice(["pod", "spine", "none"])
        if level == "pod":
            changed = replace(cluster, nodes_per_pod=world // per_node)
        elif level == "spine":
            leaves = {"nodes_per_leaf": 1, "oversubscription": 4.0, "rails": bool(rng.integers(2))}
            changed = replace(cluster, network=replace(cluster.network, **leaves))
        problem = replace(problem, cluster=changed)
    if rng.random() < 0.3:
        # Host links and host memory that ranks share.
        cluster = problem.cluster
        shared = replace(
            cluster,
            host_link=replace(cluster.host_link, devices=2),
            host_memory_bandwidth_bytes_per_s=20e9,
        )
        problem = replace(problem, cluster=shared)
    if rng.random() < 0.3:
        scorer = PlanScorer(problem)
        largest = max(table.rows * table.dim * 4.2 for table in tables)
        floor = scorer.memory_bytes_without_tables
        tight = replace(
            problem.cluster.device, memory_bytes=floor + largest * rng.uniform(0.5, 2.5) + 2e9
        )
        problem = replace(problem, cluster=replace(problem.cluster, device=tight))
    return problem


def random_demands(rng, request):
    """Sometimes host memory is allowed, or a table is pinned to ranks."""
    if rng.random() < 0.25:
        request = replace(request, allow_uvm=True)
    if rng.random() < 0.25 and request.allowed_types & {TABLE_WISE, ShardingType.COLUMN_WISE}:
        some = rng.choice(request.world_size, max(1, request.world_size - 1), replace=False)
        pinned = TableConstraints(tables="t0", pinned_ranks=frozenset(some.tolist()))
        request = replace(request, constraints=(pinned,))
    return request


def bound_of(problem, types=ALL, **settings):
    scorer = PlanScorer(problem)
    return lower_bound(scorer, planning_request(scorer, types, 0), **settings)


def dlrm(tables, cluster=None, batch=8192, **software):
    cluster = cluster or make_cluster()
    return DlrmProblem(make_model(tables), cluster, batch, Precision.TF32, DlrmRuntime(**software))
