"""Programs: one default for each kind of workload, and the ideal one is a bound."""

from __future__ import annotations

import math

import pytest

import dse
from dse.config import parse_document
from dse.errors import ConfigError, UnknownNameError
from dse.machine.platforms import load_platform
from dse.search.space import SpaceDocument
from dse.workload import (
    BOUND_LABEL,
    IDEAL,
    PlanEffort,
    load_workload,
    predict_job,
    program_label,
    workload_kind,
)

CASES = {
    "dlrm": ("dlrm_tiny", {"world_size": 2, "global_batch_size": 4096}, "torchrec"),
    "transformer": ("gpt_1_7b", {"world_size": 8, "global_batch_size": 64}, "megatron_bridge"),
}
every_kind = pytest.mark.parametrize("kind", list(CASES))

SPACE = """\
schema_version: 1
name: s
workload: {{model: {model}}}
parameters: {{platform: a100_sxm_80, world_size: {world_size}, global_batch_size: {batch}{more}}}
objectives: [{{metric: iteration_time_s, direction: minimize}}]
"""


def job_of(kind, **parameters):
    model, chosen, _ = CASES[kind]
    platform = load_platform("a100_sxm_80")
    workload = load_workload(model)
    job = workload.job(platform, {**chosen, **parameters})
    if kind != "dlrm":
        return job
    return job.planned(PlanEffort(quick=True, improvement_rounds=0))


@every_kind
def test_the_default_is_a_real_program_of_the_kind(kind):
    workload, default = workload_kind(kind), CASES[kind][2]
    assert workload.default_program == default in workload.programs
    assert workload.program_name({}) == workload.program_name({"program": ""}) == default
    assert workload.program_name({"program": "default"}) == IDEAL
    with pytest.raises(UnknownNameError):
        workload.program_name({"program": "torchrek"})


def test_captured_steps_have_no_program():
    assert workload_kind("trace").program_name({}) == ""


@every_kind
def test_jobs_and_predictions_name_the_program(kind):
    default = CASES[kind][2]
    plain, named, ideal = (
        predict_job(job_of(kind, **chosen))
        for chosen in ({}, {"program": default}, {"program": IDEAL})
    )
    assert plain == named
    assert (plain.program, plain.is_bound) == (default, False)
    assert (ideal.program, ideal.is_bound) == (IDEAL, True)
    assert ideal.iteration_time_s < plain.iteration_time_s


@every_kind
def test_a_space_fixes_the_program(kind):
    model, chosen, default = CASES[kind]
    for more, expected in (("", default), (f", program: [{IDEAL}]", IDEAL)):
        text = SPACE.format(
            model=model,
            world_size=chosen["world_size"],
            batch=chosen["global_batch_size"],
            more=more,
        )
        space = parse_document(text, SpaceDocument, file="s.yaml").to_space()
        assert space.choices("program") == (expected,)


@every_kind
def test_the_python_interface_uses_the_same_default(kind):
    model, chosen, default = CASES[kind]
    job = dse.Job(model, "a100_sxm_80", **chosen)
    assert job.program == job.parameters["program"] == default
    assert dse.Job(model, "a100_sxm_80", **chosen, program=IDEAL).program == IDEAL


def test_labels():
    assert program_label("torchrec") == "torchrec"
    assert BOUND_LABEL in program_label(IDEAL)


# --- the bound -----------------------------------------------------------------------------------

DLRM_JOBS = (
    ("dlrm_criteo", "a100_sxm_80", 8, 55_296),
    ("dlrm_criteo", "a100_sxm_80", 16, 65_536),
    ("dlrm_small", "v100_dgx1", 8, 4096),
    ("dlrm_default", "a100_pcie", 4, 2048),
    ("dlrm_tiny", "l40s_pcie", 2, 1024),
    ("dlrm_tiny", "h100_sxm", 1, 1024),
    ("dlrm_two_tower", "b200_sxm", 8, 65_536),
    ("dlrm_ddp", "h100_sxm", 16, 65_536),
    # Links that are slower than the network cards, or as slow.
    ("dlrm_ddp", "h100_nvl", 16, 131_072),
    ("dlrm_two_tower", "l40s_pcie", 32, 262_144),
    ("dlrm_criteo", "a100_pcie", 8, 32_768),
)

TRANSFORMER_JOBS = (
    ("gpt_1_7b", "a100_sxm_80", {"tensor": 2}),
    ("llama3_8b", "h100_sxm", {"tensor": 4, "pipeline": 2}),
    ("mpt_1b", "h100_sxm", {}),
    ("qwen3_30b_a3b", "b200_sxm", {"expert": 8}),
)


def step_s(model, platform, plan=None, **parameters):
    """Seconds of a step, or infinity where the program cannot run it."""
    workload, machine = load_workload(model), load_platform(platform)
    try:
        job = workload.job(machine, parameters)
        return predict_job(job if plan is None else job.with_plan(plan)).iteration_time_s
    except ConfigError:
        return math.inf


@pytest.mark.parametrize(("model", "platform", "ranks", "batch"), DLRM_JOBS)
def test_no_program_runs_a_plan_faster_than_the_ideal_one(model, platform, ranks, batch):
    chosen = {"world_size": ranks, "global_batch_size": batch}
    job = load_workload(model).job(load_platform(platform), chosen)
    plan = job.planned(PlanEffort(quick=True, improvement_rounds=0)).plan
    times = {
        program: step_s(model, platform, plan, **chosen, program=program)
        for program in workload_kind("dlrm").programs
    }
    assert times[IDEAL] <= min(times.values()) * (1 + 1e-9), times


@pytest.mark.parametrize(("model", "platform", "degrees"), TRANSFORMER_JOBS)
def test_no_program_trains_a_transformer_faster_than_the_ideal_one(model, platform, degrees):
    chosen = {"world_size": 8, "global_batch_size": 64, **degrees}
    times = {
        program: step_s(model, platform, **chosen, program=program)
        for program in workload_kind("transformer").programs
    }
    assert times[IDEAL] <= min(times.values()) * (1 + 1e-9), times


# --- what binds ----------------------------------------------------------------------------------


def test_a_small_batch_is_bound_by_the_host_of_its_program():
    found = predict_job(job_of("dlrm"))
    assert found.bound_by == "host dispatch"
    assert found.bound_text == f"host dispatch, {100 * found.bound_share:.0f} %"
    assert 0.5 < found.bound_share <= 1
    # The breakdown agrees: what hides behind late launches is of the host.
    assert found.breakdown[0].host_s == pytest.approx(
        found.bound_share * found.iteration_time_s, rel=0.1
    )


def test_a_large_step_is_bound_by_its_products():
    found = predict_job(job_of("transformer", micro_batch_size=8))
    assert found.bound_by == "matrix products"
    assert found.breakdown[0].compute_s > found.breakdown[0].host_s
