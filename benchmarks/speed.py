"""Plans scored per second, and where the time goes.

Usage: python benchmarks/speed.py [--model NAME] [--platform NAME] [--world-size N] [--hot-rows]
           [--json]

Scores random plans of mixed sharding types under the full graph of an iteration, in batches, on
one core, and compares with the simulator that takes one graph at a time on the same plans in the
same run. Then how long a fresh solver takes for the problem, graphs and features included, and how
much shorter its iteration is than that of the best baseline plan. Then the device models alone:
predictions of kernels and collectives a second, learned against analytical, and of collectives on
each kind of topology.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from dse.machine.collectives import CollectiveOp, collective_estimate
from dse.machine.platforms import Platform, load_platform
from dse.model import load_model
from dse.sharding import ShardingType, TablePlan, hot_row_counts
from dse.simulate import simulate
from dse.workload import PlanEffort
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import solve


def random_options(
    scorer: PlanScorer, count: int, seed: int, *, hot_rows: bool = False
) -> np.ndarray:
    """Draws plans: tables whole on any rank, in two column shards, or over all rows.

    With hot rows, each table has one of the numbers worth trying, where there are any.
    """
    rng = np.random.default_rng(seed)
    world_size = scorer.problem.cluster.world_size
    everyone = tuple(range(world_size))
    options = np.empty((count, len(scorer.problem.model.tables)), dtype=np.int64)
    for index, table in enumerate(scorer.problem.model.tables):
        offered = [TablePlan(table.name, ShardingType.TABLE_WISE, (rank,)) for rank in everyone]
        if world_size > 1 and table.dim >= 2:
            offered += [
                TablePlan(table.name, ShardingType.COLUMN_WISE, (rank, (rank + 1) % world_size))
                for rank in everyone
            ]
        offered.append(TablePlan(table.name, ShardingType.ROW_WISE, everyone))
        if hot_rows and (counts := hot_row_counts(table, scorer.problem.local_batch_size)):
            offered = [replace(plan, hot_rows=some) for plan in offered for some in counts]
        ids = np.array([scorer.placements.option(index, plan) for plan in offered])
        options[:, index] = ids[rng.integers(0, len(ids), count)]
    return options


def best_of(repeats: int, work) -> float:
    """Returns the shortest of several durations: the one least disturbed by others."""
    durations = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return min(durations)


def solving(problem: DlrmProblem) -> dict[str, float]:
    """Times a search from nothing, and compares its plan with the best baseline."""
    start = time.perf_counter()
    scorer = PlanScorer(problem)
    solved = solve(scorer)
    seconds = time.perf_counter() - start
    baseline = solve(scorer, PlanEffort(improvement_rounds=0))
    found_s, before_s = scorer.score([solved.plan, baseline.plan]).iteration_time_s
    return {
        "solve_s": seconds,
        "plans_scored": solved.plans_scored,
        "gain": 1.0 - float(found_s / before_s),
    }


def device_models(name: str, count: int) -> dict[str, float]:
    """Times asking the models of a platform, learned and analytical, `count` times."""
    platform = load_platform(name)
    device, links = platform.device, platform.links
    bare = replace(
        platform,
        device=replace(device, calibrations=()),
        links=tuple(replace(link, calibrations=()) for link in links),
    )
    rng = np.random.default_rng(0)
    m, n, k = np.exp(rng.uniform(np.log(16), np.log(16384), (3, count))).round()
    sizes = np.exp(rng.uniform(np.log(1024), np.log(2.0**29), count))

    def gemm_s(chosen: Platform) -> float:
        return best_of(3, lambda: chosen.kernel_time("gemm", m=m, n=n, k=k, precision="bf16"))

    def collective_s(chosen: Platform) -> float:
        ranks = chosen.devices_per_node
        return best_of(3, lambda: chosen.collective_time("all_to_all", sizes, ranks))

    return {
        "predictions": count,
        "gemm_s": gemm_s(platform),
        "gemm_analytical_s": gemm_s(bare),
        "collective_s": collective_s(platform),
        "collective_analytical_s": collective_s(bare),
    }


def topology_times_s(count: int) -> dict[str, float]:
    """Times `count` collective times on each kind of topology; the slowest operation counts."""
    node, pod = load_platform("h100_sxm"), load_platform("gb200_nvl72")
    nodes = node.cluster(128)
    leaves = replace(nodes.network, nodes_per_leaf=4, oversubscription=2.0, rails=True)
    clusters = {
        "one node": node.cluster(8),
        "16 nodes": nodes,
        "16 nodes, leaves and rails": replace(nodes, network=leaves),
        "one pod": pod.cluster(72),
        "8 pods": pod.cluster(576),
    }
    sizes = np.exp(np.random.default_rng(0).uniform(np.log(1024), np.log(2.0**33), count))
    operations = tuple(CollectiveOp)
    return {
        name: max(
            best_of(3, lambda c=cluster, op=op: collective_estimate(c, op, sizes))
            for op in operations
        )
        for name, cluster in clusters.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="dlrm_dcnv2")
    parser.add_argument("--platform", default="h100_sxm")
    parser.add_argument("--world-size", type=int, default=8)
    parser.add_argument("--plans", type=int, default=20_000)
    parser.add_argument(
        "--hot-rows", action="store_true", help="every rank keeps popular rows of the tables"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    model = load_model(arguments.model)
    start = time.perf_counter()
    platform = load_platform(arguments.platform)
    load_s = time.perf_counter() - start
    cluster = platform.cluster(arguments.world_size)
    problem = DlrmProblem(
        model,
        cluster,
        model.global_batch_size // arguments.world_size * arguments.world_size,
        model.precision,
        DlrmRuntime(hot_rows=arguments.hot_rows),
    )
    scorer = PlanScorer(problem)
    options = random_options(scorer, arguments.plans, seed=0, hot_rows=arguments.hot_rows)
    scorer.score_options(options[:64])
    seconds = best_of(3, lambda: scorer.score_options(options))

    singles = [scorer.placements.plan_of(row) for row in options[:20]]
    graphs = [scorer.filled(plan).expanded().graph for plan in singles]
    single_s = best_of(3, lambda: [simulate(graph) for graph in graphs]) / len(graphs)
    rate, single_rate = arguments.plans / seconds, 1 / single_s
    result = {
        "model": model.name,
        "load_platform_s": load_s,
        "tables": len(model.tables),
        "ranks": arguments.world_size,
        "tasks": graphs[0].task_count,
        "plans": arguments.plans,
        "plans_per_s": rate,
        "single_plans_per_s": single_rate,
        "ratio": rate / single_rate,
    }
    result |= solving(problem)
    models = device_models(arguments.platform, 100_000)
    result |= models
    topologies = topology_times_s(100_000)
    result["collective_topologies_s"] = topologies
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    print(
        f"{model.name}: {len(model.tables)} tables × {arguments.world_size} ranks, "
        f"{result['tasks']} tasks, one core"
    )
    print(f"  batched       {rate:12,.0f} plans/s")
    print(f"  one by one    {single_rate:12,.0f} plans/s")
    print(f"  ratio         {result['ratio']:12,.0f}")
    print(
        f"  solved in     {result['solve_s']:12.2f} s, {result['plans_scored']:,} plans; "
        f"{result['gain']:.1%} less time than the best baseline"
    )
    print(f"{arguments.platform}: loaded in {load_s:.3f} s")
    for what in ("gemm", "collective"):
        learned_s, bare_s = models[f"{what}_s"], models[f"{what}_analytical_s"]
        print(
            f"  100,000 × {what:<11} {learned_s:6.3f} s learned, {bare_s:6.3f} s analytical "
            f"({learned_s / bare_s:.1f} ×)"
        )
    for name, seconds in topologies.items():
        print(f"  100,000 × {name:<26} {seconds:6.3f} s, slowest collective, with spread")


if __name__ == "__main__":
    main()
