"""The graph of one rank gives the same answers as the graph of all ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.machine import Precision
from dse.sharding import PLANNERS, ShardingType
from dse.simulate import breakdown, simulate
from dse.workload import LaunchMode, predict_job
from dse.workload.dlrm import (
    DenseBottom,
    DlrmJob,
    DlrmProblem,
    DlrmRuntime,
    PlanScorer,
    TrainPipeline,
)
from dse.workload.dlrm.solver import planning_request
from tests.conftest import make_cluster, make_model

EAGER = DlrmRuntime()
GRAPHS = DlrmRuntime(launch=LaunchMode.CUDA_GRAPHS, pipeline=TrainPipeline.BASE)
FIRST_RANK = replace(GRAPHS, dense_bottom=DenseBottom.FIRST_RANK)
ALL = frozenset(ShardingType)


def plans_of(scorer: PlanScorer):
    types = [ALL, frozenset({ShardingType.ROW_WISE}), frozenset({ShardingType.TABLE_ROW_WISE})]
    types += [frozenset({ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL})]
    return [
        PLANNERS[planner](planning_request(scorer, chosen, 0))
        for chosen in types
        for planner in ("dim_greedy", "random")
    ]


@pytest.mark.parametrize("software", [EAGER, GRAPHS, FIRST_RANK], ids=["eager", "graphs", "first"])
@pytest.mark.parametrize(("world", "per_node"), [(1, 4), (4, 4), (8, 4), (4, 1)])
def test_predictions_are_those_of_the_graph_of_all_ranks(software, world, per_node):
    cluster = make_cluster(world, per_node)
    scorer = PlanScorer(DlrmProblem(make_model(), cluster, 8192, Precision.TF32, software))
    for plan in plans_of(scorer):
        timeline = simulate(scorer.filled(plan).expanded().graph)
        scored_s = scorer.score([plan]).iteration_time_s[0]
        prediction = predict_job(DlrmJob.scored(scorer, plan))
        assert scored_s == pytest.approx(timeline.makespan_s, rel=1e-12)
        assert prediction.iteration_time_s == pytest.approx(timeline.makespan_s, rel=1e-12)
        for mine, expected in zip(prediction.breakdown, breakdown(timeline), strict=True):
            for part in ("compute_s", "exposed_communication_s", "host_s", "idle_s"):
                found = getattr(mine, part)
                assert found == pytest.approx(getattr(expected, part), abs=1e-12)


def test_samples_are_the_same_each_time_and_those_of_other_plans_are_others():
    cluster = make_cluster(8, 4)
    scorer = PlanScorer(DlrmProblem(make_model(), cluster, 8192, Precision.TF32, GRAPHS))
    plan, other = plans_of(scorer)[:2]
    samples_s = DlrmJob.scored(scorer, plan).sample_times_s()
    assert samples_s.std() > 0
    np.testing.assert_array_equal(samples_s, DlrmJob.scored(scorer, plan).sample_times_s())
    assert (samples_s != DlrmJob.scored(scorer, other).sample_times_s()).any()


@pytest.mark.parametrize("software", [EAGER, GRAPHS, FIRST_RANK], ids=["eager", "graphs", "first"])
def test_the_prediction_is_the_median_of_its_samples(software):
    scorer = PlanScorer(
        DlrmProblem(make_model(), make_cluster(8, 4), 8192, Precision.TF32, software)
    )
    for plan in plans_of(scorer):
        prediction = predict_job(DlrmJob.scored(scorer, plan))
        samples_s = DlrmJob.scored(scorer, plan).sample_times_s()
        assert np.median(samples_s) == pytest.approx(prediction.iteration_time_s, rel=1e-3)
        assert prediction.iteration_time_p5_s < prediction.iteration_time_s
        assert prediction.iteration_time_s < prediction.iteration_time_p95_s
