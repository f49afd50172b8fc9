"""Predictions of models with towers, experts, tasks, traced operators, without dense features."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.model import (
    Experts,
    Interaction,
    InteractionKind,
    OperatorKind,
    Task,
    Tower,
    TracedDense,
    TracedOperator,
)
from dse.sharding import ShardingType
from dse.workload import explain_job, predict_job
from dse.workload.dlrm import DlrmJob, DlrmProblem, DlrmRuntime
from tests.conftest import make_cluster, make_model, make_table

TABLES = tuple(make_table(f"t{index}", rows=1000, dim=8, pooling=2) for index in range(3))
TASKS = tuple(Task(name, (16, 1)) for name in ("click", "like", "share"))


def product(name, m, n, k, parameters=0):
    sizes = (("m", m), ("n", n), ("k", k))
    return TracedOperator(f"traced.{name}", OperatorKind.GEMM, sizes, parameters=parameters)


SAMPLES, WIDTH, INPUT = (0.0, 1.0), (64.0,), (24.0,)
TRACED = TracedDense(
    before=(product("bottom", SAMPLES, WIDTH, WIDTH),),
    forward=(product("over", SAMPLES, WIDTH, INPUT),),
    backward=(product("over.backward", WIDTH, INPUT, SAMPLES, parameters=64 * 24),),
    after=(product("bottom.backward", WIDTH, WIDTH, SAMPLES, parameters=64 * 64),),
    kept_values=(0.0, 128.0),
    outputs=1,
)

MODELS = {
    "towers": {
        "towers": (Tower("user", ("t0", "t1"), (16, 8)), Tower("item", ("t2",), (8,))),
        "top_mlp": (),
    },
    "factorization machine": {"interaction": Interaction(InteractionKind.FM)},
    "full cross": {"interaction": Interaction(InteractionKind.DCNV2, layers=2)},
    "tasks": {"tasks": TASKS, "top_mlp": ()},
    "experts": {"tasks": TASKS, "experts": Experts(4, (16,), 1, 2), "top_mlp": (32,)},
    "traced": {"traced": TRACED, "interaction": Interaction(InteractionKind.CONCAT)},
}


def job(software=None, **changes):
    model = replace(make_model(TABLES), dense_features=0, bottom_mlp=(), **changes)
    problem = DlrmProblem(
        model, make_cluster(2, 2), 1024, model.precision, software or DlrmRuntime()
    )
    return DlrmJob(problem, allowed_types=frozenset({ShardingType.TABLE_WISE}))


@pytest.mark.parametrize("name", MODELS)
def test_every_part_is_predicted_and_explained(name):
    found = job(**MODELS[name]).solve(time_limit_s=0.1)
    solved = job(**MODELS[name]).with_plan(found.plan, "test")
    assert predict_job(solved).iteration_time_s > 0
    assert explain_job(solved).ranks
    groups = set(solved.attributed().groups)
    words = {"towers": "towers", "tasks": "heads of tasks", "experts": "experts"}
    words["traced"] = "dense part"
    if name in words:
        assert {f"{words[name]} forward", f"{words[name]} backward"} <= groups


def test_more_tasks_are_never_faster():
    times = [job(tasks=TASKS[:count], top_mlp=()).optimistic_time_s() for count in (1, 2, 3)]
    assert times == sorted(set(times))


def test_traced_operators_run_where_they_were_traced():
    traced = job(**MODELS["traced"])
    graph = traced.with_plan(traced.solve(time_limit_s=0.1).plan).attributed().graph
    order = [name for name in graph.names if name.startswith("traced.")]
    assert list(dict.fromkeys(order)) == [
        "traced.bottom",
        "traced.over",
        "traced.over.backward",
        "traced.bottom.backward",
    ]


def test_traced_parameters_are_reduced_and_kept():
    larger = replace(TRACED, after=(replace(TRACED.after[0], parameters=10**8), *TRACED.after[1:]))
    both = [job(**MODELS["traced"] | {"traced": one}) for one in (TRACED, larger)]
    plans = [one.with_plan(one.solve(time_limit_s=0.1).plan) for one in both]
    small, large = (predict_job(one) for one in plans)
    assert large.iteration_time_s > small.iteration_time_s
    held = [max(one.memory_bytes_per_rank) for one in (small, large)]
    assert held[1] - held[0] > 8e8


def test_a_fused_interaction_leaves_the_towers():
    software = DlrmRuntime(fused_interaction=True, fused_activations=True)
    with_towers = job(software, **MODELS["towers"])
    solved = with_towers.with_plan(with_towers.solve(time_limit_s=0.1).plan)
    names = solved.attributed().graph.names
    assert "tower.user.0.forward" in names
    assert "interaction.dot" in names
    assert "interaction.triangle" not in names
