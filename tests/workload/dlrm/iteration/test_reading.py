"""Samples read from a node's storage while earlier ones are trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.explanation import ROW, Resource
from dse.machine import Precision, rank_group
from dse.machine.platforms import load_platform
from dse.sharding import ShardingType
from dse.workload import LaunchMode, explain_job, find_program
from dse.workload.dlrm import (
    DLRM_PROGRAMS,
    DlrmJob,
    DlrmProblem,
    DlrmRuntime,
    InputPath,
    PlanScorer,
)
from dse.workload.dlrm.iteration._reading import read_bytes, read_time_s
from dse.workload.dlrm.solver import lower_bound, planning_request
from tests.conftest import make_cluster, make_model
from tests.workload.dlrm.test_prediction import spread_plan

#: A reader of raw files: a label, 13 dense features and 69 indices of four bytes each.
READER = DlrmRuntime(launch=LaunchMode.CUDA_GRAPHS, read_value_bytes=4.0)
SAMPLE_BYTES = 4 * (1 + 13 + 69)
BATCH = 4096


def problem_of(storage, software=READER, world=4, per_node=4):
    cluster = make_cluster(world, per_node, storage_bandwidth_bytes_per_s=storage)
    return DlrmProblem(make_model(), cluster, BATCH, Precision.TF32, software)


def job_of(storage, software=READER):
    return DlrmJob(problem_of(storage, software)).with_plan(spread_plan())


@pytest.mark.parametrize("software", [READER, DlrmRuntime(read_value_bytes=4.0)])
def test_reading_hides_behind_an_iteration_until_it_is_longer(software):
    alone_s = job_of(None, software).simulated()[0]
    for times in (0.1, 0.99, 1.01, 30.0):
        storage = BATCH * SAMPLE_BYTES / (times * alone_s)
        expected_s = alone_s * max(1.0, times)
        assert job_of(storage, software).simulated()[0] == pytest.approx(expected_s, rel=1e-9)


def test_nodes_read_what_their_ranks_take():
    for path, samples in (
        (InputPath.BY_SAMPLE, BATCH // 2),
        (InputPath.BY_TABLE, BATCH),
        (InputPath.ON_DEVICE, 0),
    ):
        problem = problem_of(1e9, replace(READER, input_path=path), world=8)
        assert read_bytes(problem) == samples * SAMPLE_BYTES
        assert read_time_s(problem) == pytest.approx(samples * SAMPLE_BYTES / 1e9)
    assert read_time_s(problem_of(None)) == 0.0
    assert read_time_s(problem_of(1e9, DlrmRuntime())) == 0.0


@pytest.mark.parametrize(("ranks", "stride"), [(4, 1), (4, 4), (8, 2)])
def test_groups_of_ranks_read_their_part_at_their_share(ranks, stride):
    whole = make_cluster(16, 4, storage_bandwidth_bytes_per_s=1e9)
    part = rank_group(whole, ranks, stride)
    model = make_model()
    all_s, part_s = (
        read_time_s(DlrmProblem(model, cluster, 64 * cluster.world_size, Precision.TF32, READER))
        for cluster in (whole, part)
    )
    assert part_s == pytest.approx(all_s)


def test_what_binds_is_the_loader():
    job = job_of(1e6)
    attributed = job.attributed()
    parts = attributed.resources.parts_s()
    reading = attributed.graph.names.index("read samples")
    assert parts[ROW[Resource.LOADER], reading] == pytest.approx(BATCH * SAMPLE_BYTES / 1e6)
    explanation = explain_job(job)
    assert max(explanation.path, key=lambda one: one.seconds).resource is Resource.LOADER
    assert "read samples" in explanation.sentence


@pytest.mark.parametrize("storage", [1e8, 1e10, 1e12])
def test_no_plan_is_below_the_bound(storage):
    scorer = PlanScorer(problem_of(storage))
    bound = lower_bound(scorer, planning_request(scorer, frozenset(ShardingType), 0))
    time_s = float(scorer.score([spread_plan()]).iteration_time_s[0])
    # The bound is that of a linear program, to its tolerance.
    assert read_time_s(scorer.problem) <= bound.iteration_time_s * (1 + 1e-5)
    assert bound.iteration_time_s <= time_s * (1 + 1e-9)


def test_evaluations_read_too_unless_the_devices_keep_their_samples():
    slow, fast = job_of(1e6), job_of(None)
    assert slow.evaluation_time_s(1e6) == pytest.approx(1e6 * SAMPLE_BYTES / 1e6)
    assert job_of(1e15).evaluation_time_s(1e6) == fast.evaluation_time_s(1e6)
    kept = job_of(1e6, replace(READER, evaluation_on_devices=True))
    assert kept.evaluation_time_s(1e6) == fast.evaluation_time_s(1e6)


def test_storage_that_is_not_counted_is_noted():
    assert any("storage" in note for note in job_of(1e9, DlrmRuntime()).notes())
    assert not any("storage" in note for note in job_of(1e9).notes() + job_of(None).notes())


def test_a_platform_states_its_storage():
    cluster = load_platform("a100_sxm_80").cluster(8)
    assert cluster.storage_bandwidth_bytes_per_s is None
    software = find_program(DLRM_PROGRAMS, "hugectr_hybrid").software
    assert software.read_value_bytes == 4.0
