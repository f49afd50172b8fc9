"""Explanations of predictions: every second has a reason, and the reason is the model's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.explanation import ROW, Resource, compare_explanations, explain_graph
from dse.graph import TaskKind
from dse.machine import PeakRates
from dse.machine.collectives import CollectiveOp, collective_time_s
from dse.sharding import ComputeKernel, ShardingPlan, ShardingType, TablePlan
from dse.workload import LaunchMode, compare_jobs, explain_job, task_details
from dse.workload.dlrm import DlrmJob, DlrmProblem, DlrmRuntime, PlanScorer, TrainPipeline
from dse.workload.dlrm.explain._resources import plan_resources
from tests.conftest import make_cluster, make_model

TYPES = (
    ShardingType.TABLE_WISE,
    ShardingType.ROW_WISE,
    ShardingType.TABLE_ROW_WISE,
    ShardingType.DATA_PARALLEL,
    ShardingType.TABLE_WISE,
    ShardingType.TABLE_WISE,
)


def make_plan(world_size, local_size, types=TYPES):
    tables = []
    for index, kind in enumerate(types):
        node = index % max(1, world_size // local_size)
        ranks = {
            ShardingType.TABLE_WISE: (0 if index > 3 else world_size - 1,),
            ShardingType.TABLE_ROW_WISE: tuple(range(node * local_size, (node + 1) * local_size)),
        }.get(kind, tuple(range(world_size)))
        kernel = ComputeKernel.DENSE if kind is ShardingType.DATA_PARALLEL else ComputeKernel.FUSED
        tables.append(TablePlan(f"t{index}", kind, ranks, kernel))
    return ShardingPlan(world_size, tuple(tables))


def make_problem(world_size=4, devices_per_node=4, batch=4096, software=None, **changes):
    cluster = make_cluster(world_size, devices_per_node, **changes)
    model = make_model()
    return DlrmProblem(model, cluster, batch, model.precision, software or DlrmRuntime())


def explained(problem, types=TYPES):
    cluster = problem.cluster
    plan = make_plan(cluster.world_size, cluster.local_size, types)
    scorer = PlanScorer(problem)
    layout = scorer.filled(plan).expanded()
    return layout, plan_resources(scorer, plan, layout), explain_job(DlrmJob.scored(scorer, plan))


CASES = {
    "one node": make_problem(),
    "two nodes": make_problem(8, 4, batch=65536),
    "one rank": make_problem(1, 4),
    "graphs": make_problem(software=DlrmRuntime(launch=LaunchMode.CUDA_GRAPHS)),
    "nothing beside": make_problem(
        software=DlrmRuntime(overlap_dense_all_reduce=False, pipeline=TrainPipeline.BASE)
    ),
    "on the host": make_problem(software=DlrmRuntime(step_host_s=1e-3, loader_s_per_sample=1e-7)),
}


@pytest.mark.parametrize("name", CASES)
def test_every_second_has_a_reason(name):
    types = (ShardingType.TABLE_WISE,) * 6 if CASES[name].cluster.world_size == 1 else TYPES
    layout, resources, explanation = explained(CASES[name], types)
    parts = resources.parts_s()
    np.testing.assert_allclose(parts.sum(axis=0), layout.graph.duration_s, rtol=1e-6)
    assert not parts[ROW[Resource.OTHER]].any()
    total_s = sum(one.seconds for one in explanation.path)
    assert total_s == pytest.approx(explanation.iteration_time_s, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_resources_fit_the_kind_of_task(name):
    types = (ShardingType.TABLE_WISE,) * 6 if CASES[name].cluster.world_size == 1 else TYPES
    layout, resources, _ = explained(CASES[name], types)
    of_collectives = {Resource.LINK, Resource.NETWORK, Resource.COLLECTIVE_LATENCY}
    of_hosts = {Resource.HOST, Resource.LOADER}
    for resource, part in zip(Resource, resources.parts_s(), strict=True):
        kinds = {TaskKind(kind) for kind in layout.graph.kind[part > 0].tolist()}
        if resource in of_collectives:
            assert kinds <= {TaskKind.COLLECTIVE}
        elif resource in of_hosts:
            assert kinds <= {TaskKind.HOST}
        else:
            assert kinds <= {TaskKind.COMPUTE, TaskKind.COPY}


@pytest.mark.parametrize("name", ["one node", "two nodes", "on the host"])
def test_equal_ranks_are_explained_once_as_all_of_them_are(name):
    _, _, explanation = explained(CASES[name])
    cluster = CASES[name].cluster
    plan = make_plan(cluster.world_size, cluster.local_size, TYPES)
    every = DlrmJob.scored(PlanScorer(CASES[name]), plan).attributed()
    expected = explain_graph(every.graph, every.resources, every.groups, every.movable)
    assert explanation.sentence == expected.sentence
    assert [one.task for one in explanation.tasks] == [one.task for one in expected.tasks]
    assert len(explanation.ranks) == cluster.world_size
    for mine, other in zip(explanation.ranks, expected.ranks, strict=True):
        assert mine.movable_s == other.movable_s
        assert mine.gain_without_movable_s == other.gain_without_movable_s
        assert [one.rank for one in mine.waited_for] == [one.rank for one in other.waited_for]


def test_loading_is_the_loader_and_the_step_the_host():
    layout, resources, _ = explained(CASES["on the host"])
    parts, names = resources.parts_s(), layout.graph.names
    loading, step = names.index("load the next batch"), names.index("step on the host")
    assert parts[ROW[Resource.LOADER], loading] == pytest.approx(1024e-7)
    assert parts[ROW[Resource.HOST], step] == pytest.approx(1e-3)


def test_one_node_has_no_network_and_one_rank_no_link():
    one_node = {one.resource for one in explained(CASES["one node"])[2].sensitivities}
    assert Resource.LINK in one_node
    assert Resource.NETWORK not in one_node
    alone = explained(CASES["one rank"], (ShardingType.TABLE_WISE,) * 6)[2]
    assert Resource.LINK not in {one.resource for one in alone.sensitivities}
    assert alone.ranks[0].waited_for == ()


def test_a_collective_is_latency_and_what_bandwidth_takes():
    problem = CASES["one node"]
    software = replace(problem.software, overlap_dense_all_reduce=False)
    problem = replace(problem, software=software)
    layout, resources, _ = explained(problem)
    task = layout.graph.names.index("dense all-reduce")
    empty_s = collective_time_s(problem.cluster, CollectiveOp.ALL_REDUCE, 1e-3)
    assert resources.parts_s()[ROW[Resource.COLLECTIVE_LATENCY], task] == pytest.approx(empty_s)


#: Each makes one resource of the machine `factor` times as fast.
FASTER = {
    Resource.MEMORY: lambda cluster, factor: device_with(
        cluster, memory_bandwidth_bytes_per_s=cluster.device.memory_bandwidth_bytes_per_s * factor
    ),
    Resource.ARITHMETIC: lambda cluster, factor: device_with(
        cluster, peak=PeakRates(*(rate * factor for rate in (20e12, 100e12, 200e12, 200e12)))
    ),
    Resource.LINK: lambda cluster, factor: replace(
        cluster,
        link=replace(
            cluster.link, bandwidth_bytes_per_s=cluster.link.bandwidth_bytes_per_s * factor
        ),
    ),
    Resource.NETWORK: lambda cluster, factor: replace(
        cluster,
        network=replace(
            cluster.network,
            nic_bandwidth_bytes_per_s=cluster.network.nic_bandwidth_bytes_per_s * factor,
        ),
    ),
}


def device_with(cluster, **changes):
    return replace(cluster, device=replace(cluster.device, **changes))


@pytest.mark.parametrize("resource", FASTER)
def test_sensitivities_are_those_of_faster_machines(resource):
    """Rescaled tasks against the whole model asked again, where nothing was learned."""
    problem = make_problem(8, 4, batch=65536)
    before = explained(problem)[2]
    told = next(one for one in before.sensitivities if one.resource is resource)
    faster = replace(problem, cluster=FASTER[resource](problem.cluster, told.factor))
    gain_s = before.iteration_time_s - explained(faster)[2].iteration_time_s
    assert told.gain_s == pytest.approx(gain_s, rel=0.12, abs=2e-3 * before.iteration_time_s)
    assert told.gain_s > 0


def test_a_faster_machine_is_explained_by_what_became_faster():
    problem = make_problem(8, 4, batch=65536)
    faster = replace(problem, cluster=FASTER[Resource.NETWORK](problem.cluster, 2.0))
    difference = compare_explanations(explained(problem)[2], explained(faster)[2])
    assert difference.change_s < 0
    assert sum(step.change_s for step in difference.steps) == pytest.approx(difference.change_s)
    by_resource = {}
    for step in difference.steps:
        by_resource[step.resource] = by_resource.get(step.resource, 0.0) + step.change_s
    assert min(by_resource, key=by_resource.get) is Resource.NETWORK


def test_a_rank_with_all_tables_is_what_the_others_wait_for():
    problem = make_problem()
    tables = tuple(
        TablePlan(f"t{index}", ShardingType.TABLE_WISE, (2,), ComputeKernel.FUSED)
        for index in range(6)
    )
    explanation = explain_job(DlrmJob.scored(PlanScorer(problem), ShardingPlan(4, tables)))
    assert explanation.imbalance.most_loaded_rank == 2
    assert explanation.imbalance.excess == pytest.approx(3.0)
    for rank in explanation.ranks:
        if rank.rank != 2:
            assert rank.waited_for[0].rank == 2
            assert rank.gain_without_movable_s == 0.0
    assert explanation.ranks[2].gain_without_movable_s > 0


def test_details_have_sizes_and_reasons():
    problem = make_problem()
    plan = make_plan(4, 4)
    scorer = PlanScorer(problem)
    names = scorer.filled(plan).expanded().graph.names
    details = [dict(one) for one in task_details(DlrmJob.scored(scorer, plan).attributed())]
    assert len(details) == len(names)
    product = details[names.index("top_mlp.0.forward")]
    assert (product["group"], product["m"], product["n"]) == ("top MLP forward", 1024.0, 256.0)
    exchange = details[names.index("output all-to-all")]
    assert exchange["held_bytes"] > 0
    assert exchange["bound by"] in ("NVSwitch", "collective latency")
    assert details[names.index("dense all-reduce")]["message_bytes"] > 0
    assert details[names.index("pooled lookup")]["memory_bytes"] > 0


def test_the_same_plan_is_a_tie_and_a_faster_device_is_not():
    scorer, plan = PlanScorer(make_problem()), make_plan(4, 4)
    same = compare_jobs(DlrmJob.scored(scorer, plan), DlrmJob.scored(scorer, plan))
    assert (same.ratio, same.ratio_p5, same.ratio_p95, same.tie) == (1.0, 1.0, 1.0, True)
    problem = make_problem(batch=2**18)
    cluster = FASTER[Resource.MEMORY](FASTER[Resource.ARITHMETIC](problem.cluster, 3.0), 3.0)
    faster = PlanScorer(replace(problem, cluster=cluster))
    paired = compare_jobs(DlrmJob.scored(PlanScorer(problem), plan), DlrmJob.scored(faster, plan))
    assert paired.ratio > 1
    assert not paired.tie
    assert paired.faster_share > 0.95


def test_twice_the_batch_in_twice_the_time_is_no_gain():
    scorer, plan = PlanScorer(make_problem(batch=4096)), make_plan(4, 4)
    larger = PlanScorer(make_problem(batch=8192))
    paired = compare_jobs(DlrmJob.scored(scorer, plan), DlrmJob.scored(larger, plan))
    times = [one.score([plan]).iteration_time_s[0] for one in (scorer, larger)]
    assert paired.ratio == pytest.approx(2 * times[0] / times[1])
