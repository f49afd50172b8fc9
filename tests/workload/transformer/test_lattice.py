"""The lattice of usual ways: its rules, and that nothing of all ways is much better."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from dse.workload import load_workload
from dse.workload.transformer import DataSharding, Parallelism, Recompute, TransformerWorkload

PARALLEL = ("tensor", "pipeline", "context", "expert", "interleave")


def ways(model, platform, world_size, batch, **changes):
    workload = load_workload(model)
    workload = TransformerWorkload(replace(workload.model, **changes))
    machine = load_platform(platform)
    given = {"platform": platform, "world_size": world_size, "global_batch_size": batch}
    found = list(workload.candidates(machine, given))
    return [workload.job(machine, one) for one in found], found


def degrees(jobs, name):
    return {getattr(job.parallelism, name) for job in jobs}


@pytest.mark.parametrize(
    ("model", "platform", "world_size", "batch"),
    [
        ("llama3_8b", "h100_sxm", 16, 128),
        ("llama3_70b", "b200_sxm", 64, 256),
        ("qwen3_30b_a3b", "h100_sxm", 16, 512),
        ("gpt_7_5b", "v100_dgx1", 64, 512),
    ],
)
def test_all_can_run_and_there_are_not_many(model, platform, world_size, batch):
    jobs, found = ways(model, platform, world_size, batch)
    assert 1 <= len(jobs) <= 250
    assert len({tuple(sorted(one.items())) for one in found}) == len(found)
    for job in jobs:
        job.check()
        assert not job.cannot_fit()
        spread = job.parallelism
        assert job.cluster.domain_size % spread.tensor == 0
        assert spread.interleave == 1 or spread.pipeline > 1
        assert spread.sequence_parallel == (spread.tensor > 1)
        if spread.context > 1:
            assert job.model.sequence_length // spread.context >= 4096
        if spread.expert > 1:
            assert job.model.experts.count % spread.expert == 0


def test_long_samples_are_shared():
    short, _ = ways("llama3_8b", "h100_sxm", 16, 16, sequence_length=4096)
    long, _ = ways("llama3_8b", "h100_sxm", 16, 16, sequence_length=32768)
    assert degrees(short, "context") == {1}
    assert degrees(long, "context") >= {2, 4, 8}


def test_experts_are_shared_by_none_by_a_node_and_by_all():
    jobs, _ = ways("qwen3_30b_a3b", "h100_sxm", 16, 512)
    alone = {job.parallelism.expert for job in jobs if job.parallelism.tensor == 1}
    assert {8, 16} <= alone <= {1, 8, 16}


def test_stages_that_wait_long_get_virtual_stages():
    few, _ = ways("llama3_70b", "b200_sxm", 64, 64)
    many, _ = ways("llama3_70b", "b200_sxm", 64, 8192)
    assert max(degrees(few, "interleave")) > 1
    deep = [job for job in many if job.micro_batches >= 100 * job.parallelism.pipeline]
    assert degrees(deep, "interleave") == {1}


def test_recomputation_is_the_least_that_fits():
    jobs, _ = ways("llama3_70b", "h100_sxm", 64, 128)
    again = [job for job in jobs if job.parallelism.recompute is Recompute.FULL]
    assert again
    for job in again:
        less = replace(job.parallelism, recompute=Recompute.NONE)
        assert replace(job, parallelism=less).cannot_fit()


def every_way(job):
    """Whatever can run, of a machine's ranks."""
    size = job.cluster.world_size
    for tensor, pipeline, context in product((1, 2, 4, 8), repeat=3):
        if size % (tensor * pipeline * context):
            continue
        for interleave, micro_batch, sharding, recompute in product(
            (1, 2, 4), (1, 2, 4), DataSharding, (Recompute.NONE, Recompute.FULL)
        ):
            spread = Parallelism(
                tensor=tensor,
                pipeline=pipeline,
                data=size // tensor // pipeline // context,
                context=context,
                interleave=interleave,
                sequence_parallel=tensor > 1,
                micro_batch_size=micro_batch,
                recompute=recompute,
                data_sharding=sharding,
            )
            one = replace(job, parallelism=spread)
            try:
                one.check()
            except ConfigError:
                continue
            if (spread.replicas > 1 or sharding is DataSharding.NONE) and not one.cannot_fit():
                yield one


def fastest_s(jobs):
    best_s = float("inf")
    for least_s, job in sorted(
        ((job.optimistic_time_s(closer=True), job) for job in jobs), key=lambda pair: pair[0]
    ):
        if least_s >= best_s:
            break
        best_s = min(best_s, job.simulated().time_s)
    return best_s


@pytest.mark.parametrize(
    ("model", "platform", "world_size", "batch"),
    [("llama3_8b", "a100_sxm_80", 16, 128), ("gpt_7_5b", "h100_sxm", 8, 512)],
)
def test_no_other_way_is_much_faster(model, platform, world_size, batch):
    jobs, _ = ways(model, platform, world_size, batch)
    assert fastest_s(jobs) <= 1.02 * fastest_s(every_way(jobs[0]))
