"""Problems whose iterations differ in durations alone share a graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.machine import Precision
from dse.sharding import PLANNERS, ShardingType
from dse.workload import LaunchMode
from dse.workload.dlrm import (
    DenseBottom,
    DlrmProblem,
    DlrmRuntime,
    ExchangeGroup,
    InputPath,
    PlanScorer,
    TrainPipeline,
    WireFormat,
    WireFormats,
    build_layout,
)
from dse.workload.dlrm.iteration._layout import _structure
from dse.workload.dlrm.iteration._shape import make_shape
from dse.workload.dlrm.scoring._compiled import compile_layout
from dse.workload.dlrm.solver import planning_request
from tests.conftest import make_cluster, make_model

POOLED = 1 << ExchangeGroup.POOLED
ROW = 1 << ExchangeGroup.ROW
#: Several buckets of gradients, even of a small model.
GRAPHS = DlrmRuntime(launch=LaunchMode.CUDA_GRAPHS, dense_bucket_bytes=1000)


def make_problem(
    world: int = 4, per_node: int = 4, batch: int = 4096, software: DlrmRuntime = GRAPHS
) -> DlrmProblem:
    return DlrmProblem(
        make_model(), make_cluster(world, per_node), batch, Precision.TF32, software
    )


READING = replace(
    make_problem(software=replace(GRAPHS, read_value_bytes=4.0)),
    cluster=make_cluster(storage_bandwidth_bytes_per_s=1e9),
)


def test_another_batch_has_the_same_graph_and_other_durations():
    small, large = (
        build_layout(make_problem(batch=batch), POOLED, one_rank=True) for batch in (4096, 65536)
    )
    assert small.graph.dependency_tasks is large.graph.dependency_tasks
    assert small.graph.names == large.graph.names
    longer = large.graph.duration_s > small.graph.duration_s
    assert longer.any()
    assert (large.graph.duration_s >= small.graph.duration_s).all()


def test_one_rank_of_more_nodes_does_the_same():
    assert make_shape(make_problem(8, 4), POOLED, one_rank=True) == make_shape(
        make_problem(16, 4), POOLED, one_rank=True
    )
    assert make_shape(make_problem(8, 4), POOLED) != make_shape(make_problem(16, 4), POOLED)


@pytest.mark.parametrize(
    "other",
    [
        make_problem(8, 4),
        make_problem(1, 4),
        make_problem(software=DlrmRuntime()),
        make_problem(software=replace(GRAPHS, pipeline=TrainPipeline.BASE)),
        make_problem(software=replace(GRAPHS, overlap_dense_all_reduce=False)),
        make_problem(software=replace(GRAPHS, dense_bucket_bytes=25 * 2**20)),
        make_problem(software=replace(GRAPHS, fused_activations=True)),
        make_problem(software=replace(GRAPHS, input_path=InputPath.ON_DEVICE)),
        make_problem(software=replace(GRAPHS, step_host_s=1e-4)),
        make_problem(software=replace(GRAPHS, loader_s_per_sample=1e-7)),
        make_problem(software=replace(GRAPHS, dense_bottom=DenseBottom.FIRST_RANK)),
        READING,
    ],
    ids=range(12),
)
def test_what_adds_or_removes_tasks_is_part_of_the_shape(other):
    assert make_shape(other, ROW) != make_shape(make_problem(), ROW)
    ours, others = (build_layout(problem, ROW) for problem in (make_problem(), other))
    assert len(ours.graph.names) != len(others.graph.names) or not np.array_equal(
        ours.graph.dependency_tasks, others.graph.dependency_tasks
    )


@pytest.mark.parametrize("layout", [POOLED, ROW, POOLED | ROW])
@pytest.mark.parametrize("forward_only", [False, True])
def test_a_graph_that_others_made_is_what_it_would_be_alone(layout, forward_only):
    problem = make_problem(8, 4, 8192, DlrmRuntime(calls_per_operator=1.5))
    build_layout(replace(problem, global_batch_size=65536), layout, forward_only=forward_only)
    shared = build_layout(problem, layout, forward_only=forward_only)
    _structure.cache_clear()
    alone = build_layout(problem, layout, forward_only=forward_only)
    for field in ("kind", "stream", "duration_s", "collective", "dependency_tasks"):
        np.testing.assert_array_equal(getattr(shared.graph, field), getattr(alone.graph, field))
    np.testing.assert_array_equal(shared.spread, alone.spread)
    np.testing.assert_array_equal(shared.slot_task, alone.slot_task)


def test_the_precision_on_the_wire_changes_exchanges_and_nothing_that_is_compiled():
    narrow = replace(GRAPHS, wire=WireFormats.of(WireFormat.FP16))
    wide, halved = make_problem(8, 4), make_problem(8, 4, software=narrow)
    assert compile_layout(wide, POOLED) is compile_layout(halved, POOLED)
    scorers = [PlanScorer(problem) for problem in (wide, halved)]
    request = planning_request(scorers[0], frozenset({ShardingType.TABLE_WISE}), 0)
    plan = PLANNERS["dim_greedy"](request)
    wide_s, halved_s = (scorer.score([plan]).iteration_time_s[0] for scorer in scorers)
    assert halved_s < wide_s
