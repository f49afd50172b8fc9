from __future__ import annotations

from dataclasses import replace
import math

import numpy as np
import pytest

from dse.errors import ConfigError
from dse.graph import Stream
from dse.machine import Precision
from dse.machine.kernels import EmbeddingKernels
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.simulate import simulate
from dse.workload import LaunchMode, find_program
from dse.workload._step_errors import ErrorShape
from dse.workload.dlrm import (
    DLRM_PROGRAMS,
    DenseBottom,
    DlrmJob,
    DlrmProblem,
    DlrmRuntime,
    InputPath,
    PlanScorer,
    Slot,
    TrainPipeline,
    slot_durations_s,
)
from dse.workload.dlrm.iteration._operators import stack_operators
from dse.workload.dlrm.scoring._features import FEATURE_COUNT
from dse.workload.dlrm.solver import lower_bound, planning_request
from tests.conftest import ROOT, make_cluster, make_model
from tests.workload.dlrm.solver.bound.oracle import (
    best_time_s,
    random_demands,
    random_problem,
    random_tables,
    random_types,
)
from tests.workload.dlrm.test_prediction import random_plans, spread_plan

TABLE_WISE = ShardingType.TABLE_WISE
GRAPHS = DlrmRuntime(launch=LaunchMode.CUDA_GRAPHS)


def problem_of(software=GRAPHS, world_size=4, batch=4096, precision=Precision.TF32):
    return DlrmProblem(make_model(), make_cluster(world_size), batch, precision, software)


def time_s(software, plan=None, **changes) -> float:
    scorer = PlanScorer(problem_of(software, **changes))
    return float(scorer.score([plan or spread_plan()]).iteration_time_s[0])


def task_names(software, rank=0, **changes) -> list[str]:
    graph = PlanScorer(problem_of(software, **changes)).filled(spread_plan()).expanded().graph
    return [
        name
        for name, stream in zip(graph.names, graph.stream, strict=True)
        if graph.streams[stream].rank == rank
    ]


# --- what each choice does ----------------------------------------------------------------------


def test_a_bottom_on_the_first_rank_runs_there_alone_with_the_global_batch():
    software = replace(GRAPHS, dense_bottom=DenseBottom.FIRST_RANK)
    first, second = task_names(software), task_names(software, rank=1)
    assert "bottom_mlp.0.forward" in first
    assert "bottom_mlp.0.weight_gradient" in first
    assert not [name for name in second if name.startswith("bottom")]
    stack = stack_operators(problem_of(software))
    assert {op.m for op in stack.first_bottom_forward if op.kind.is_product} == {4096}
    assert {op.m for op in stack.forward if op.name.startswith("top") and op.kind.is_product} == {
        1024
    }


def test_only_the_top_is_reduced_when_the_bottom_is_on_the_first_rank():
    everywhere = stack_operators(problem_of())
    first = stack_operators(problem_of(replace(GRAPHS, dense_bottom=DenseBottom.FIRST_RANK)))
    bottom = 13 * 128 + 128 + 128 * 64 + 64
    parameters = sum(count for count, _ in everywhere.gradients)
    assert sum(count for count, _ in first.gradients) == parameters - bottom


def test_the_first_ranks_output_is_exchanged_like_a_table():
    """Rank 0 sends 64 columns more; an exchange that it already decides gets longer."""
    software = replace(GRAPHS, dense_bottom=DenseBottom.FIRST_RANK)
    durations = []
    for chosen in (GRAPHS, software):
        layout = PlanScorer(problem_of(chosen)).filled(spread_plan()).expanded()
        exchange = layout.slot_task[layout.slot_kind == Slot.POOLED_EXCHANGE]
        durations.append(layout.graph.duration_s[exchange])
    # Ranks 0 and 1 hold two tables of 64 columns, so the exchange grows from two to three.
    assert (durations[1] > durations[0]).all()


def test_a_single_rank_has_nothing_to_leave_to_the_first():
    alone = spread_plan(1)
    first = replace(GRAPHS, dense_bottom=DenseBottom.FIRST_RANK)
    assert time_s(first, alone, world_size=1) == time_s(GRAPHS, alone, world_size=1)


def test_fused_activations_leave_products_and_their_gradients():
    fused = stack_operators(problem_of(replace(GRAPHS, fused_activations=True)))
    plain = stack_operators(problem_of())
    names = [op.name for op in (*fused.forward, *fused.backward, *fused.bottom_backward)]
    assert not [name for name in names if "activation" in name]
    assert [count for count, _ in fused.gradients] == [count for count, _ in plain.gradients]
    operators = [*fused.backward, *fused.bottom_backward]
    assert all(operators[at].name.endswith("weight_gradient") for _, at in fused.gradients)


def test_a_fused_interaction_moves_vectors_and_products_once():
    stack = stack_operators(problem_of(replace(GRAPHS, fused_interaction=True)))
    (forward,) = [op for op in stack.forward if op.name.startswith("interaction")]
    (backward,) = [op for op in stack.backward if op.name.startswith("interaction")]
    # Seven vectors of 64, the dense one once more, and 21 products; 1,024 samples of four bytes.
    assert forward.traffic_bytes == 1024 * 4 * (7 * 64 + 64 + 21)
    assert backward.traffic_bytes == 1024 * 4 * (2 * 7 * 64 + 64 + 21)


def test_general_indexing_of_the_triangle_costs_by_its_values():
    plain = stack_operators(problem_of())
    indexed = stack_operators(problem_of(replace(GRAPHS, triangle_gradient_bytes=1000.0)))
    difference = sum(op.traffic_bytes for op in indexed.backward) - sum(
        op.traffic_bytes for op in plain.backward
    )
    assert difference == pytest.approx(1024 * 21 * 1000.0)


@pytest.mark.parametrize(
    ("path", "copies", "exchanges"),
    [(InputPath.BY_SAMPLE, 2, 1), (InputPath.BY_TABLE, 2, 0), (InputPath.ON_DEVICE, 0, 0)],
)
def test_input_paths(path, copies, exchanges):
    names = task_names(replace(GRAPHS, input_path=path))
    assert sum(name.startswith("copy") for name in names) == copies
    assert names.count("input all-to-all") == exchanges


def test_host_time_of_a_step_is_added_to_a_captured_graph():
    assert time_s(replace(GRAPHS, step_host_s=1e-3)) == pytest.approx(time_s(GRAPHS) + 1e-3)


def test_a_loader_hides_behind_the_devices_until_it_is_longer():
    fast = replace(GRAPHS, loader_s_per_sample=1e-9)
    assert time_s(fast) == pytest.approx(time_s(GRAPHS))
    slow = replace(GRAPHS, loader_s_per_sample=1e-5)
    # After the launch of the graph, 1,024 samples of a rank.
    assert time_s(slow) == pytest.approx(10e-6 + 1024 * 1e-5)


def test_more_calls_of_the_framework_take_as_much_more_host_time():
    one, five = DlrmRuntime(), DlrmRuntime(calls_per_operator=5.0)
    hosts = []
    for software in (one, five):
        graph = PlanScorer(problem_of(software)).filled(spread_plan()).expanded().graph
        host = [stream for stream, of in enumerate(graph.streams) if of.name == "host"]
        hosts.append(graph.duration_s[np.isin(graph.stream, host)].sum())
    assert hosts[1] == pytest.approx(5.0 * hosts[0])
    assert time_s(replace(GRAPHS, calls_per_operator=5.0)) == time_s(GRAPHS)


def test_a_forward_pass_is_part_of_an_iteration():
    for software in (
        GRAPHS,
        DlrmRuntime(),
        find_program(DLRM_PROGRAMS, "deeplearningexamples").software,
    ):
        scorer = PlanScorer(problem_of(software))
        forward_s = scorer.forward_time_s(spread_plan())
        assert 0.0 < forward_s < time_s(software)


def test_a_program_of_wide_errors_has_a_wide_interval():
    step = DlrmJob.scored(PlanScorer(problem_of(GRAPHS)), spread_plan()).iteration()
    narrow_s, wide_s = (
        replace(step, program_errors=ErrorShape(scale)).sample_times_s() for scale in (0.02, 0.3)
    )
    median_s = np.median(wide_s)
    assert median_s == pytest.approx(np.median(narrow_s), rel=1e-3)
    (low_s, high_s), (inner_low_s, inner_high_s) = (
        np.quantile(times_s, (0.05, 0.95)) for times_s in (wide_s, narrow_s)
    )
    assert low_s < inner_low_s < median_s < inner_high_s < high_s
    # Errors are larger on the slow side.
    assert math.log(high_s / median_s) > math.log(median_s / low_s)


def cpu_problem(software, world_size=2, tables=None):
    cluster = make_cluster(world_size)
    device = replace(cluster.device, kind="cpu")
    model = make_model(tables) if tables else make_model()
    return DlrmProblem(model, replace(cluster, device=device), 4096, Precision.FP32, software)


def test_on_cpus_exchanges_and_computation_take_turns():
    plan = ShardingPlan(
        2, tuple(TablePlan(table.name, TABLE_WISE, (0,)) for table in make_model().tables)
    )
    scorer = PlanScorer(cpu_problem(GRAPHS))
    graph = scorer.filled(plan).expanded().graph
    assert {stream.name for stream in graph.streams} == {"host", "compute", "copy"}
    # Rank 0 holds everything and is waited for: after one launch its stream is never idle.
    busy = [
        seconds
        for seconds, stream in zip(graph.duration_s, graph.stream, strict=True)
        if graph.streams[stream] == Stream(0, "compute")
    ]
    makespan_s = float(scorer.score([plan]).iteration_time_s[0])
    assert sum(busy) <= makespan_s <= sum(busy) + 60e-6
    device = PlanScorer(problem_of(GRAPHS, world_size=2, precision=Precision.FP32))
    assert float(device.score([plan]).iteration_time_s[0]) < makespan_s


def test_lengths_before_indices_are_one_more_collective():
    plan = ShardingPlan(
        4, tuple(TablePlan(table.name, TABLE_WISE, (0,)) for table in make_model().tables)
    )

    def input_s(**software):
        problem = problem_of(DlrmRuntime(pipeline=TrainPipeline.BASE, **software))
        features = PlanScorer(problem).features(plan)
        return slot_durations_s(problem, 1, features)[Slot.INPUT_EXCHANGE, 0, 0]

    one, two = input_s(), input_s(lengths_first=True)
    empty = slot_durations_s(problem_of(), 1, np.full((FEATURE_COUNT, 4, 1), 1e-9))[
        Slot.INPUT_EXCHANGE, 0, 0
    ]
    # The same bytes, and the latency twice; slices of messages round either way.
    assert one < two <= one + 1.5 * empty


@pytest.mark.parametrize("name", ["dse_trainer", "torchrec"])
@pytest.mark.parametrize("seed", range(3))
def test_no_plan_on_cpus_is_below_the_bound(name, seed):
    rng = np.random.default_rng(seed)
    for _ in range(6):
        tables = random_tables(rng, int(rng.integers(1, 4)))
        program = find_program(DLRM_PROGRAMS, name)
        software = program.software_for(Precision.FP32, on_cpu=True)
        problem = cpu_problem(software, int(rng.choice([2, 4])), tables)
        scorer = PlanScorer(problem)
        request = planning_request(scorer, random_types(rng), 0)
        optimum = best_time_s(scorer, request, limit=1000, seed=seed)
        assert lower_bound(scorer, request).iteration_time_s <= optimum


# --- profiles -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DLRM_PROGRAMS)
@pytest.mark.parametrize("precision", [Precision.TF32, Precision.FP16])
def test_scorer_and_simulator_agree_under_every_profile(name, precision):
    problem = problem_of(
        find_program(DLRM_PROGRAMS, name).software_for(precision), precision=precision
    )
    scorer = PlanScorer(problem)
    plans = [spread_plan(), *random_plans(problem, 8)]
    simulated = [simulate(scorer.filled(plan).expanded().graph).makespan_s for plan in plans]
    assert scorer.score(plans).iteration_time_s == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_is_below_the_bound_under_any_profile(monkeypatch, seed):
    profiles = list(DLRM_PROGRAMS.values())
    monkeypatch.setattr(
        "tests.workload.dlrm.solver.bound.oracle.random_software",
        lambda rng: profiles[rng.integers(len(profiles))].software,
    )
    rng = np.random.default_rng(seed)
    for _ in range(8):
        problem = random_problem(rng, int(rng.integers(1, 4)), [(1, 4), (2, 2), (3, 3), (4, 2)])
        scorer = PlanScorer(problem)
        request = random_demands(rng, planning_request(scorer, random_types(rng), 0))
        optimum = best_time_s(scorer, request, limit=1000, seed=seed)
        assert lower_bound(scorer, request).iteration_time_s <= optimum


def test_mixed_precision_halves_the_wire_and_casts_rows_where_the_program_does():
    profile = find_program(DLRM_PROGRAMS, "deeplearningexamples")
    single, half = (profile.software_for(p) for p in (Precision.TF32, Precision.FP16))
    assert (single.wire.text, half.wire.text) == ("fp32", "fp16")
    assert half.embedding.forward_row_passes == single.embedding.forward_row_passes + 1.5
    fused = find_program(DLRM_PROGRAMS, "hugectr").software_for(Precision.BF16)
    assert fused.embedding == find_program(DLRM_PROGRAMS, "hugectr").software.embedding


def test_an_unknown_profile_is_refused_with_the_near_one():
    with pytest.raises(ConfigError, match=r"`hugctr`; did you mean `hugectr`\?"):
        find_program(DLRM_PROGRAMS, "hugctr")


@pytest.mark.parametrize("profile", DLRM_PROGRAMS.values(), ids=lambda profile: profile.name)
def test_fitted_values_are_those_in_use_and_on_the_page(profile):
    page = (ROOT / "docs/method.md").read_text()
    assert f"`{profile.name}`" in page
    for fitted in profile.fitted:
        holders = (profile.software, profile.software.embedding, profile.cpu_software)
        assert fitted.value in [getattr(one, fitted.name, None) for one in holders]
        assert f"`{fitted.name}`" in page


def test_unfused_programs_are_slower():
    unfused = EmbeddingKernels(fused=False, forward_row_passes=2.0, backward_row_passes=5.0)
    assert time_s(replace(GRAPHS, embedding=unfused)) > time_s(GRAPHS)
