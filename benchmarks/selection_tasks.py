"""Tasks of the selection experiment: tables drawn from published ones, and plans for them.

A task draws tables from the 856 of `dlrm_meta2021`, scales them to the machine by the rule of
`scale_model`, and plans them with the six sharders of TPDS'24 (arXiv 2404.12674) and
with our solver. The dense part is small, so that plans make a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torchrec_planner import TorchRecRequest, plan_with_torchrec

from dse.machine import Precision
from dse.model import (
    META_2021,
    DataType,
    DlrmModel,
    Interaction,
    InteractionKind,
    Optimizer,
    generate_tables,
)
from dse.sharding import PLANNERS, ShardingPlan, ShardingType, TablePlan, plan_greedily
from dse.validation import find_trainer, scale_model
from dse.workload import PlanEffort, find_program
from dse.workload.dlrm import DLRM_PROGRAMS, DlrmProblem, PlanScorer, make_problem
from dse.workload.dlrm.solver import planning_request, solve

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.machine.platforms import Platform
    from dse.model import EmbeddingTable
    from dse.sharding import PlanningRequest
    from dse.workload.dlrm import DlrmRuntime

PLATFORM = "cpu"

#: The reference trainer, as the model describes it.
TRAINER = find_program(DLRM_PROGRAMS, "dse_trainer").software
WHOLE_TABLES = frozenset({ShardingType.TABLE_WISE})

#: Seed of the 856 tables, that of the model file.
_TABLES_SEED = 2021

#: Memory of a rank, for TorchRec's planner; more than all tables of a task.
_HOST_MEMORY_BYTES = 4e9


def _distinct_lookups(table: EmbeddingTable, batch: int) -> float:
    draws = batch * table.lookups_per_sample
    return table.indices.expected_unique_rows(table.rows, draws) * table.dim


def _plan_naively(request: PlanningRequest) -> ShardingPlan:
    """Table after table to rank after rank."""
    ranks = request.world_size
    return ShardingPlan(
        ranks,
        tuple(
            TablePlan(table.name, ShardingType.TABLE_WISE, (number % ranks,))
            for number, table in enumerate(request.tables)
        ),
    )


def sharders(batch: int) -> dict[str, Callable[[PlanningRequest], ShardingPlan]]:
    """Returns the six sharders of TPDS'24 by name.

    Its text does not define *norm-lookup*; here it balances lookups of distinct rows times width.

    Args:
        batch: Global batch, which decides how many rows are distinct.
    """
    return {
        "naive": _plan_naively,
        "random": PLANNERS["random"],
        "size_greedy": PLANNERS["size_greedy"],
        "lookup_greedy": PLANNERS["lookup_greedy"],
        "norm_lookup_greedy": lambda request: plan_greedily(
            request, lambda table: _distinct_lookups(table, batch)
        ),
        "size_lookup_greedy": PLANNERS["size_lookup_greedy"],
    }


def draw_model(number: int, seed: int, ranks: int, megabytes: float) -> DlrmModel:
    """Draws the tables of a task and scales them to the machine.

    Args:
        number: Which task.
        seed: Seed of all tasks.
        ranks: Ranks.
        megabytes: Rows that an iteration looks up.
    """
    rng = np.random.default_rng([seed, number])
    everything = generate_tables(META_2021, 856, _TABLES_SEED, DataType.FP32)
    count = int(rng.integers(8, 25))
    chosen = np.sort(rng.choice(len(everything), count, replace=False))
    model = DlrmModel(
        name=f"task {number}",
        description="",
        source="tables of dlrm_meta2021, a small dense part",
        dense_features=64,
        bottom_mlp=(64, 32),
        interaction=Interaction(InteractionKind.CONCAT, stride=16),
        top_mlp=(64, 1),
        tables=tuple(everything[index] for index in chosen.tolist()),
        precision=Precision.FP32,
        dense_optimizer=Optimizer.SGD,
        sparse_optimizer=Optimizer.SGD,
        global_batch_size=65536,
    )
    return scale_model(model, memory_bytes=200e6, lookup_bytes=megabytes * 1e6, world_size=ranks)


def task_problem(
    model: DlrmModel, ranks: int, platform: Platform, software: DlrmRuntime = TRAINER
) -> DlrmProblem:
    """Returns what is planned for a task, with the program that trains it."""
    cluster = platform.cluster(ranks)
    return make_problem(model, cluster, model.global_batch_size, model.precision, software)


def software_of(trainer: str) -> DlrmRuntime:
    """Returns a trainer's program as the model describes it."""
    program = find_program(DLRM_PROGRAMS, find_trainer(trainer).program)
    return program.software_for(Precision.FP32, on_cpu=True)


def plan_of_torchrec(problem: DlrmProblem) -> ShardingPlan:
    """Returns the plan of TorchRec's own planner, with the types that it offers for CPUs."""
    cluster, model = problem.cluster, problem.model
    answer = plan_with_torchrec(
        TorchRecRequest(
            tables=model.tables,
            optimizer=model.sparse_optimizer,
            world_size=cluster.world_size,
            devices_per_node=cluster.devices_per_node,
            global_batch_size=problem.global_batch_size,
            device_memory_bytes=0.0,
            host_memory_bytes=_HOST_MEMORY_BYTES,
            device_kind="cpu",
        )
    )
    return answer.plan


def plans_of(
    problem: DlrmProblem, number: int, *, with_torchrec: bool = False
) -> dict[ShardingPlan, list[str]]:
    """Returns the different plans of a task and who made each.

    Args:
        problem: The task.
        number: Its number, which seeds what is drawn.
        with_torchrec: Whether to ask TorchRec's planner too, and to look for plans that TorchRec
            can run.
    """
    scorer = PlanScorer(problem)
    request = planning_request(scorer, WHOLE_TABLES, number)
    plans: dict[ShardingPlan, list[str]] = {}
    for name, make in sharders(problem.global_batch_size).items():
        plans.setdefault(make(request), []).append(name)
    if with_torchrec:
        plans.setdefault(plan_of_torchrec(problem), []).append("torchrec")
    ours = solve(scorer, PlanEffort(seed=number, time_limit_s=2.0))
    plans.setdefault(ours.plan, []).append("ours")
    return plans
