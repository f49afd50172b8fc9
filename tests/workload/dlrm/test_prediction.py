from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import ConfigError, PlanError
from dse.graph import TaskKind
from dse.machine import LinkKind, LinkSpec, Precision, Quote
from dse.machine.platforms import load_platform
from dse.sharding import PLANNERS, ShardingPlan, ShardingType, TablePlan
from dse.simulate import simulate
from dse.workload import LaunchMode, load_workload, predict_job
from dse.workload.dlrm import DlrmJob, DlrmProblem, DlrmRuntime, PlanScorer, TrainPipeline
from dse.workload.dlrm.iteration._dense import bucket_sizes
from dse.workload.dlrm.solver import planning_request
from tests.conftest import make_cluster, make_device, make_model, make_table

TW = ShardingType.TABLE_WISE


def make_problem(cluster=None, batch=4096, **software) -> DlrmProblem:
    return DlrmProblem(
        make_model(), cluster or make_cluster(), batch, Precision.TF32, DlrmRuntime(**software)
    )


def spread_plan(world_size: int = 4) -> ShardingPlan:
    names = [table.name for table in make_model().tables]
    return ShardingPlan(
        world_size,
        tuple(TablePlan(name, TW, (i % world_size,)) for i, name in enumerate(names)),
    )


def random_plans(problem: DlrmProblem, count: int, seed: int = 0) -> list[ShardingPlan]:
    """Plans with all sharding types mixed."""
    rng = np.random.default_rng(seed)
    world, per_node = problem.cluster.world_size, problem.cluster.domain_size
    everyone = tuple(range(world))
    plans = []
    for _ in range(count):
        tables = []
        for table in problem.model.tables:
            kind = list(ShardingType)[rng.integers(7)]
            node = int(rng.integers(problem.cluster.domain_count))
            local = tuple(range(node * per_node, (node + 1) * per_node))
            ranks = {
                ShardingType.TABLE_WISE: (int(rng.integers(world)),),
                ShardingType.COLUMN_WISE: tuple(int(r) for r in rng.integers(0, world, 2)),
                ShardingType.TABLE_COLUMN_WISE: local[:2],
                ShardingType.TABLE_ROW_WISE: local,
                ShardingType.GRID_SHARD: everyone,
            }.get(kind, everyone)
            tables.append(TablePlan(table.name, kind, ranks))
        plans.append(ShardingPlan(world, tuple(tables)))
    return plans


def iteration_times_s(cluster, plans) -> np.ndarray:
    scorer = PlanScorer(make_problem(cluster, batch=cluster.world_size * 1024))
    return scorer.score(plans).iteration_time_s


def plans_for(cluster, seed):
    return random_plans(make_problem(cluster, batch=cluster.world_size * 1024), 8, seed)


@given(st.integers(0, 100))
def test_the_ranks_of_a_pod_are_one_node_to_a_plan(seed):
    pod = make_cluster(16, 4, nodes_per_pod=2)
    plans = plans_for(pod, seed)
    nodes = make_cluster(16, 8, network=replace(pod.network, nics_per_node=8))
    # Only sums over a pod differ: they are trees of its nodes.
    np.testing.assert_array_less(
        iteration_times_s(pod, plans), 1.000001 * iteration_times_s(nodes, plans)
    )
    one_node = replace(nodes, nodes_per_pod=1)
    assert (iteration_times_s(one_node, plans) == iteration_times_s(nodes, plans)).all()


@given(st.integers(0, 100))
def test_one_pod_needs_no_network(seed):
    pod = make_cluster(8, 2, nodes_per_pod=4)
    plans = plans_for(pod, seed)
    slow = replace(pod, network=replace(pod.network, nic_bandwidth_bytes_per_s=1.0, latency_s=1.0))
    assert (iteration_times_s(slow, plans) == iteration_times_s(pod, plans)).all()


@given(st.integers(0, 100), st.floats(1, 8), st.floats(1, 8), st.booleans())
def test_more_oversubscription_is_never_faster(seed, first, factor, rails):
    flat = make_cluster(16, 2, nodes_per_pod=2)
    plans = plans_for(flat, seed)
    leaves = replace(flat.network, nodes_per_leaf=4, rails=rails)
    times = [
        iteration_times_s(
            replace(flat, network=replace(leaves, oversubscription=oversubscription)), plans
        )
        for oversubscription in (1.0, first, first * factor)
    ]
    assert (times[0] >= iteration_times_s(flat, plans) * (1 - 1e-12)).all()
    assert (times[1] >= times[0] * (1 - 1e-12)).all()
    assert (times[2] >= times[1] * (1 - 1e-12)).all()


def test_an_nvl72_is_one_domain():
    workload = load_workload("dlrm_dcnv2")
    cluster = load_platform("gb200_nvl72").cluster(64)
    assert (cluster.domain_count, cluster.domain_size, cluster.node_count) == (1, 64, 16)
    parameters = {"world_size": 64, "global_batch_size": 135168}
    platform = load_platform("gb200_nvl72")
    keys = {
        workload.job(platform, {**parameters, "network": network}).key()
        for network in ("infiniband_ndr400", "ethernet_100g")
    }
    assert len(keys) == 1


@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4), (4, 1)])
@pytest.mark.parametrize("launch", LaunchMode)
@pytest.mark.parametrize("pipeline", TrainPipeline)
def test_batched_scores_equal_single_simulations(world, per_node, launch, pipeline):
    switch = pipeline in (TrainPipeline.BASE, TrainPipeline.SEMI_SYNC)
    problem = make_problem(
        make_cluster(world, per_node),
        launch=launch,
        pipeline=pipeline,
        overlap_dense_all_reduce=switch,
        dense_bucket_bytes=100_000,
    )
    scorer = PlanScorer(problem)
    plans = random_plans(problem, 12)
    scores = scorer.score(plans)
    for plan, seconds, peak in zip(
        plans, scores.iteration_time_s, scores.peak_memory_bytes, strict=True
    ):
        prediction = predict_job(DlrmJob.scored(scorer, plan), Quote(10.0))
        assert prediction.iteration_time_s == pytest.approx(seconds, rel=1e-12)
        assert max(prediction.memory_bytes_per_rank) == pytest.approx(peak, rel=1e-12)
        for rank in prediction.breakdown:
            parts = rank.compute_s + rank.exposed_communication_s + rank.host_s + rank.idle_s
            assert parts == pytest.approx(seconds, rel=1e-9)


def test_the_graph_has_every_stream_on_every_rank_and_collectives_over_all():
    layout = PlanScorer(make_problem()).filled(spread_plan()).expanded()
    graph = layout.graph
    assert {(stream.rank, stream.name) for stream in graph.streams} == {
        (rank, name) for rank in range(4) for name in ("host", "compute", "communication", "copy")
    }
    collectives = np.flatnonzero(graph.kind == TaskKind.COLLECTIVE)
    sizes = np.bincount(graph.collective[collectives])
    assert set(sizes.tolist()) == {4}
    names = {graph.names[index] for index in collectives}
    assert {"input all-to-all", "output all-to-all", "gradient all-to-all"} < names


def test_embedding_memory_by_hand():
    problem = make_problem()
    prediction = predict_job(DlrmJob.scored(PlanScorer(problem), spread_plan()))
    # Tables of 50,000 (i + 1) rows × 64 columns, tables 0 and 4 on rank 0; one state value a row.
    rows = 50_000 * (1 + 5)
    assert prediction.memory[0].bytes_for("embedding weights") == rows * 64 * 4
    assert prediction.memory[0].bytes_for("embedding optimizer state") == rows * 4
    # Dense: weights, gradients and no SGD state: 13-128-64, interaction 64 + 7 · 6 / 2 = 85.
    parameters = 14 * 128 + 129 * 64 + 86 * 256 + 257
    assert prediction.memory[0].bytes_for("dense parameters") == parameters * 8
    assert prediction.cost_usd_per_million_samples is None


def test_cost_by_hand():
    prediction = predict_job(
        DlrmJob.scored(PlanScorer(make_problem()), spread_plan()), Quote(36.0)
    )
    per_million = 36.0 / 3600 * prediction.iteration_time_s * 1e6 / 4096
    assert prediction.cost_usd_per_million_samples == pytest.approx(per_million)


def test_the_reason_names_rank_need_and_limit():
    cluster = make_cluster(device=make_device(memory_bytes=2.05e9))
    prediction = predict_job(DlrmJob.scored(PlanScorer(make_problem(cluster)), spread_plan()))
    assert not prediction.feasible
    for word in ("rank", "embedding weights", "GiB usable on test device", "of 4 ranks"):
        assert word in prediction.infeasible_reason


def test_the_interval_holds_the_prediction_and_is_repeatable():
    scorer = PlanScorer(make_problem())
    first, second = (predict_job(DlrmJob.scored(scorer, spread_plan())) for _ in range(2))
    assert first == second
    assert first.iteration_time_p5_s <= first.iteration_time_s <= first.iteration_time_p95_s
    samples = DlrmJob.scored(scorer, spread_plan()).sample_times_s()
    assert samples.std() > 0


def test_buckets_close_when_full():
    groups = [(100, 1), (100, 3), (50, 5), (10, 7)]
    assert bucket_sizes(groups, 800) == [(800, 3), (240, 7)]
    assert bucket_sizes(groups, 1) == [(400, 1), (400, 3), (200, 5), (40, 7)]
    assert bucket_sizes([], 800) == []


# --- physical laws ------------------------------------------------------------------------

factors = st.floats(1, 8)
seeds = st.integers(0, 1000)


def times(cluster, seed, batch=4096):
    problem = make_problem(cluster, batch)
    return PlanScorer(problem).score(random_plans(problem, 5, seed)).iteration_time_s


@given(seeds, factors, st.sampled_from(["link", "network", "memory", "l2", "host"]))
def test_more_bandwidth_is_never_slower(seed, factor, what):
    base = make_cluster(8, 4)
    changed = {
        "link": lambda: replace(
            base, link=replace(base.link, bandwidth_bytes_per_s=300e9 * factor)
        ),
        "network": lambda: replace(
            base, network=replace(base.network, nic_bandwidth_bytes_per_s=25e9 * factor)
        ),
        "memory": lambda: replace(
            base, device=make_device(memory_bandwidth_bytes_per_s=2e12 * factor)
        ),
        "l2": lambda: replace(base, device=make_device(l2_bandwidth_bytes_per_s=4e12 * factor)),
        "host": lambda: replace(
            base, host_link=replace(base.host_link, bandwidth_bytes_per_s=25e9 * factor)
        ),
    }[what]()
    assert np.all(times(changed, seed) <= times(base, seed) * (1 + 1e-12))


@given(seeds, st.floats(1, 100))
def test_more_memory_never_makes_a_feasible_plan_infeasible(seed, factor):
    small = make_cluster(device=make_device(memory_bytes=2.6e9))
    large = make_cluster(device=make_device(memory_bytes=2.6e9 * factor))
    problem = make_problem(small)
    plans = random_plans(problem, 8, seed)
    before = PlanScorer(problem).score(plans).fits
    after = PlanScorer(make_problem(large)).score(plans).fits
    assert np.all(after >= before)


@given(seeds, st.permutations(range(2)), st.permutations(range(4)))
def test_other_numbers_of_ranks_and_nodes_take_the_same_time(seed, nodes, within):
    problem = make_problem(make_cluster(8, 4))
    plans = random_plans(problem, 5, seed)
    number = [4 * nodes[rank // 4] + within[rank % 4] for rank in range(8)]

    def renumbered(one):
        ranks = tuple(number[rank] for rank in one.ranks)
        # Blocks of rows go to ranks in ascending order.
        by_rows = one.sharding_type is ShardingType.TABLE_ROW_WISE or len(ranks) == 8
        return replace(one, ranks=tuple(sorted(ranks)) if by_rows else ranks)

    others = [replace(plan, tables=tuple(map(renumbered, plan.tables))) for plan in plans]
    before, after = (PlanScorer(problem).score(each) for each in (plans, others))
    np.testing.assert_allclose(after.iteration_time_s, before.iteration_time_s, rtol=1e-12)
    np.testing.assert_allclose(after.peak_memory_bytes, before.peak_memory_bytes, rtol=1e-12)


@given(seeds, st.permutations(range(6)))
def test_another_order_of_tables_takes_the_same_time(seed, order):
    problem = make_problem(make_cluster(8, 4))
    plans = random_plans(problem, 5, seed)
    tables = tuple(problem.model.tables[place] for place in order)
    other = replace(problem, model=replace(problem.model, tables=tables))
    others = [replace(plan, tables=tuple(plan.tables[place] for place in order)) for plan in plans]
    before, after = PlanScorer(problem).score(plans), PlanScorer(other).score(others)
    np.testing.assert_allclose(after.iteration_time_s, before.iteration_time_s, rtol=1e-12)
    np.testing.assert_allclose(after.peak_memory_bytes, before.peak_memory_bytes, rtol=1e-12)


def test_a_slower_link_or_another_topology_changes_the_answer():
    # A batch that is large enough not to hide communication behind kernel launches.
    batch = 65536
    base = times(make_cluster(), 0, batch)
    slower = make_cluster(link=LinkSpec("slow", LinkKind.NVSWITCH, 3e9, 3e-6))
    pcie = make_cluster(link=LinkSpec("pcie", LinkKind.PCIE, 24e9, 4e-6))
    assert np.all(times(slower, 0, batch) > base)
    assert np.all(times(pcie, 0, batch) > base)
    assert np.all(times(make_cluster(8, 4), 0, batch) != times(make_cluster(8, 8), 0, batch))


@given(st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_equal_tables_are_fastest_when_balanced(ranks):
    tables = tuple(make_table(f"t{i}", rows=400_000, pooling=20) for i in range(8))
    model = make_model(tables)
    problem = DlrmProblem(model, make_cluster(), 8192, Precision.TF32, DlrmRuntime())
    balanced, other = (
        ShardingPlan(
            4, tuple(TablePlan(t.name, TW, (r,)) for t, r in zip(tables, placed, strict=True))
        )
        for placed in ([0, 1, 2, 3, 0, 1, 2, 3], ranks)
    )
    scores = PlanScorer(problem).score([balanced, other]).iteration_time_s
    assert scores[0] <= scores[1] * (1 + 1e-12)


@given(seeds, st.integers(2, 8))
def test_scaling_the_batch_scales_time_and_the_batch_dependent_memory(seed, factor):
    cluster = make_cluster()
    assert np.all(times(cluster, seed, 4096 * factor) >= times(cluster, seed, 4096))
    plan = spread_plan()
    small, large = (
        predict_job(DlrmJob.scored(PlanScorer(make_problem(cluster, batch)), plan)).memory[0]
        for batch in (4096, 4096 * factor)
    )
    assert large.bytes_for("activations") == pytest.approx(factor * small.bytes_for("activations"))
    assert large.bytes_for("indices and pooled embeddings") == pytest.approx(
        factor * small.bytes_for("indices and pooled embeddings")
    )
    assert large.bytes_for("embedding weights") == small.bytes_for("embedding weights")


def test_eager_launches_bound_small_batches_and_graphs_remove_them():
    eager = predict_job(DlrmJob.scored(PlanScorer(make_problem(batch=64)), spread_plan()))
    captured = predict_job(
        DlrmJob.scored(
            PlanScorer(make_problem(batch=64, launch=LaunchMode.CUDA_GRAPHS)), spread_plan()
        )
    )
    assert captured.iteration_time_s < 0.6 * eager.iteration_time_s
    assert max(rank.host_s for rank in eager.breakdown) > 0.3 * eager.iteration_time_s


# --- jobs -------------------------------------------------------------------------------------


def test_a_job_with_a_plan_is_predicted_at_its_price():
    platform, parameters = load_platform("h100_sxm"), {"world_size": 8, "global_batch_size": 55296}
    job = load_workload("dlrm_dcnv2").job(platform, parameters)
    with pytest.raises(PlanError, match="no placement"):
        job.with_plan(ShardingPlan(8, ()))
    request = planning_request(job.scorer, frozenset(ShardingType), 0)
    planned = job.with_plan(PLANNERS["dim_greedy"](request), "by hand")
    prediction = predict_job(planned, platform.quote(8))
    assert planned.planner == "by hand"
    assert prediction.feasible
    assert prediction.price_usd_per_hour == 55.04
    assert prediction.throughput_samples_per_s == pytest.approx(
        55296 / prediction.iteration_time_s
    )
    assert len(prediction.breakdown) == len(prediction.memory_bytes_per_rank) == 8


def test_a_job_is_not_predicted_before_its_plan_is_found():
    with pytest.raises(PlanError, match="planned"):
        predict_job(DlrmJob(make_problem()))


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match="use 4096 or 4100"):
        make_problem(batch=4097)


def test_simulated_makespan_is_the_prediction():
    scorer = PlanScorer(make_problem())
    timeline = simulate(scorer.filled(spread_plan()).expanded().graph)
    assert (
        timeline.makespan_s == predict_job(DlrmJob.scored(scorer, spread_plan())).iteration_time_s
    )
