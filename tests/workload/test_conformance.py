"""What every kind of workload promises, whichever it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
import importlib
import json
import math
from pathlib import Path
import pickle
from statistics import NormalDist
import sys
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.explanation import Resource
from dse.machine.platforms import load_platform, override_platform
from dse.simulate import simulate
from dse.trace import read_kineto
from dse.trace.whatif import captured_step, read_changes
from dse.workload import (
    Configuration,
    Job,
    PlanEffort,
    Workload,
    compare_jobs,
    explain_job,
    load_workload,
    predict_job,
    task_details,
)
from dse.workload._step_errors import FAST_SIDE, TRANSFORMER_MEDIAN
from dse.workload.recorded import RecordedWorkload
from tests.search.traces import write_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine.platforms import Platform
    from dse.workload import ParameterValue

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin_workload"
PLATFORM = "a100_sxm_80"
KINDS = ("dlrm", "transformer", "trace", "plug-in")

#: Cases by kind: name of the model and what is chosen for it.
MODELS = {
    "dlrm": ("dlrm_tiny", {"world_size": 16, "global_batch_size": 16384, "program": "torchrec"}),
    "transformer": (
        "gpt_1_7b",
        {
            "world_size": 16,
            "global_batch_size": 32,
            "tensor": 2,
            "pipeline": 2,
            "micro_batch_size": 2,
            "recompute": "selective",
            "data_sharding": "zero1",
            "program": "megatron",
        },
    ),
    "plug-in": ("", {"world_size": 16, "global_batch_size": 16384}),
}

every_kind = pytest.mark.parametrize("kind", KINDS)


@dataclass(frozen=True)
class Case:
    """A workload and what is chosen for it.

    Attributes:
        workload: What is trained.
        platform: The machine; None for the one that a captured step brings.
        parameters: What is chosen.
    """

    workload: Workload
    platform: Platform | None
    parameters: Mapping[str, ParameterValue]

    def job(self, platform: Platform | None = None, **changes: ParameterValue) -> Job:
        chosen = {**self.parameters, **changes}
        return self.workload.job(platform or self.platform, chosen).planned(PlanEffort(quick=True))


@pytest.fixture(scope="module", autouse=True)
def cases(tmp_path_factory):
    """One case of each kind."""
    folder = tmp_path_factory.mktemp("trace")
    write_job(folder)
    captured = captured_step(read_kineto(folder / "run"))
    steps = {"halved.yaml": read_changes(folder / "halved.yaml")}
    recorded = RecordedWorkload("run", captured, 128, steps)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(EXAMPLE)
        plugin = importlib.import_module("dse_mlp").MlpWorkload
        platform = load_platform(PLATFORM)
        found = {
            kind: Case(
                load_workload(model)
                if model
                else plugin.from_text((EXAMPLE / "model.yaml").read_text()),
                platform,
                {"platform": PLATFORM, **chosen},
            )
            for kind, (model, chosen) in MODELS.items()
        }
        found["trace"] = Case(recorded, None, {"platform": "same", "optimizations": "halved.yaml"})
        CASES.update(found)
        yield found
    CASES.clear()
    made.cache_clear()
    on.cache_clear()
    sys.modules.pop("dse_mlp")


#: For properties, whose examples share the jobs.
CASES: dict[str, Case] = {}


@lru_cache
def made(kind: str) -> Job:
    """The job of a kind, with its plan."""
    return CASES[kind].job()


# --- predictions --------------------------------------------------------------------------------


@every_kind
def test_a_possible_job_passes_its_checks(kind):
    job = made(kind)
    job.check()
    job.check_parameters()
    assert job.cannot_fit() == ""
    assert (job.plan is not None) == CASES[kind].workload.finds_plans == bool(job.planner)


@every_kind
def test_the_predicted_time_is_that_of_the_simulated_iteration(kind):
    job = made(kind)
    time_s, parts, *_ = job.iteration().run()
    prediction = predict_job(job)
    assert prediction.iteration_time_s == pytest.approx(time_s, rel=1e-9)
    assert prediction.throughput_samples_per_s == pytest.approx(job.samples_per_iteration / time_s)
    assert len(prediction.breakdown) == len(parts) > 0
    for rank in prediction.breakdown:
        sums_s = rank.compute_s + rank.exposed_communication_s + rank.host_s + rank.idle_s
        assert 0 < sums_s <= time_s * (1 + 1e-9)
    assert prediction.feasible


@every_kind
def test_what_binds_the_prediction_binds_the_explanation(kind):
    job = made(kind)
    found, explanation = predict_job(job), explain_job(job)
    assert found.bound_by
    assert 0 < found.bound_share <= 1 + 1e-9
    host_s = sum(
        share.seconds
        for share in explanation.path
        if share.resource in (Resource.HOST, Resource.LOADER)
    )
    if kind != "trace":
        share = job.simulated().host_share
        assert share == pytest.approx(host_s / explanation.iteration_time_s, abs=1e-6)
    if kind in ("dlrm", "plug-in"):
        assert f"bound by {found.bound_by}" in explanation.sentence
        assert f"{100 * found.bound_share:.0f} %" in explanation.sentence


@every_kind
def test_no_time_is_below_the_bounds(kind):
    job = made(kind)
    time_s = job.simulated()[0]
    assert 0 <= job.optimistic_time_s() <= job.optimistic_time_s(closer=True) <= time_s
    bound_s = job.lower_bound_s()
    assert (bound_s is None) == (job.plan is None)
    assert bound_s is None or 0 < bound_s <= time_s * (1 + 1e-9)


@every_kind
def test_samples_lie_around_the_prediction_and_of_transformers_more_are_slower(kind):
    job = made(kind)
    prediction, samples_s = predict_job(job), job.sample_times_s()
    if len(samples_s) == 0:
        assert math.isnan(prediction.iteration_time_p5_s)
        assert math.isnan(prediction.iteration_time_p95_s)
        return
    faster = 0.5
    if kind == "transformer":
        faster = NormalDist().cdf(-TRANSFORMER_MEDIAN / FAST_SIDE)
        assert 0.4 < faster < 0.45
    assert (samples_s < prediction.iteration_time_s).mean() == pytest.approx(faster, abs=0.01)
    assert (samples_s == job.sample_times_s()).all()
    assert prediction.iteration_time_p5_s < prediction.iteration_time_s
    assert prediction.iteration_time_s < prediction.iteration_time_p95_s


@every_kind
def test_a_job_ties_with_itself(kind):
    job = made(kind)
    if len(job.sample_times_s()) == 0:
        with pytest.raises(ConfigError, match="captured step"):
            compare_jobs(job, job)
        return
    found = compare_jobs(job, job)
    assert (found.ratio, found.ratio_p5, found.ratio_p95) == (1.0, 1.0, 1.0)
    assert found.tie


@every_kind
def test_memory_is_positive_or_not_known(kind):
    job = made(kind)
    prediction = predict_job(job)
    for account in job.memory():
        assert account.total_bytes > 0
        assert all(size_bytes >= 0 for _, size_bytes in account.parts)
    if not job.memory():
        assert math.isnan(prediction.memory_headroom_fraction)
    else:
        assert 0 < prediction.peak_memory_bytes < prediction.usable_memory_bytes


@every_kind
def test_metrics_are_those_that_the_kind_announces(kind):
    announced = {metric.name for metric in CASES[kind].workload.metrics}
    assert {name for name, _ in predict_job(made(kind)).metrics} <= announced


# --- explanations -------------------------------------------------------------------------------


@every_kind
def test_an_explanation_sums_to_the_iteration(kind):
    job = made(kind)
    time_s, explanation = job.simulated()[0], explain_job(job)
    assert explanation.iteration_time_s == pytest.approx(time_s, rel=1e-6)
    assert sum(share.seconds for share in explanation.path) == pytest.approx(time_s, rel=1e-6)
    assert sum(task.seconds for task in explanation.tasks) == pytest.approx(time_s, rel=1e-6)
    assert explanation.sentence


@every_kind
def test_the_attributed_graph_is_as_long_as_the_iteration(kind):
    job = made(kind)
    attributed = job.attributed()
    tasks = attributed.graph.task_count
    assert simulate(attributed.graph).makespan_s == pytest.approx(job.simulated()[0], rel=1e-6)
    assert len(attributed.groups) == tasks
    assert len(task_details(attributed)) == tasks
    parts_s = attributed.resources.parts_s().sum(axis=0)
    assert parts_s == pytest.approx(attributed.graph.duration_s, rel=1e-6, abs=1e-12)


# --- what others do with a workload -------------------------------------------------------------


@every_kind
def test_a_workload_goes_to_other_processes(kind):
    case = CASES[kind]
    sent = pickle.loads(pickle.dumps(case.workload))
    again = Case(sent, case.platform, case.parameters).job()
    assert again.simulated() == made(kind).simulated()


@every_kind
def test_jobs_with_equal_parameters_have_equal_answers(kind):
    case = CASES[kind]
    again = case.job()
    assert again.key() is not None or not case.workload.bounds_time
    assert again.key() == made(kind).key()
    assert again.plan == made(kind).plan
    assert repr(asdict(predict_job(again))) == repr(asdict(predict_job(made(kind))))


@every_kind
def test_what_is_chosen_has_a_name_in_search_spaces(kind):
    case = CASES[kind]
    keys = case.workload.parameters.keys()
    assert set(case.parameters) <= keys
    block = case.workload.parameters.model_validate(dict(case.parameters))
    choices = {parameter.name: parameter.choices for parameter in block.expand()}
    assert set(choices) <= keys
    for name, value in case.parameters.items():
        assert choices[name] == (value,)


@every_kind
def test_a_configuration_is_summarized_and_deployed(kind):
    case, job = CASES[kind], made(kind)
    configuration = Configuration(
        kind=case.workload.kind,
        platform=str(case.parameters["platform"]),
        world_size=job.world_size,
        global_batch_size=round(job.samples_per_iteration),
        parameters=tuple(case.parameters.items()),
        program=str(case.parameters.get("program", "")),
        plan=job.plan,
        planner=job.planner,
    )
    assert "\n" not in case.workload.summary(configuration)
    assert case.workload.batch_grain(configuration) >= 1
    document = json.loads(case.workload.deployment(configuration, case.workload.name))
    assert document["model"] == case.workload.name
    assert document["world_size"] == job.world_size


# --- physics ------------------------------------------------------------------------------------

#: Figures of a machine of which more is better. A captured step brings a bandwidth of its own.
RATES = (
    "device.memory.bandwidth",
    "device.l2.bandwidth",
    "device.l2.size",
    "link.bandwidth",
    "network.bandwidth",
    "node.host_link.bandwidth",
)

#: Figures of which less is better.
DELAYS = (
    "device.kernel_floor",
    "link.latency",
    "network.latency",
    "node.host_link.latency",
    "host.between_operators",
    "host.before_launch",
    "host.after_launch",
    "host.launch",
    "host.between_launches",
    "host.graph_launch",
)

#: Products and collectives: measured, of another device, of one size only, by formulas alone.
MACHINES = (PLATFORM, "l40s_pcie", "mi300x", "v100_dgx1", "p100_pcie")

PLANNED = ("dlrm", "transformer", "plug-in")


@lru_cache
def on(kind: str, machine: str, *overrides: str) -> Job:
    """The job of a kind on another machine, with the plan of the first one."""
    case = CASES[kind]
    platform, _ = override_platform(load_platform(machine), overrides)
    job = case.workload.job(platform, {**case.parameters, "platform": machine})
    return job if made(kind).plan is None else job.with_plan(made(kind).plan)


def seconds(kind: str, machine: str, *overrides: str) -> float:
    return on(kind, machine, *overrides).simulated()[0]


@pytest.mark.parametrize("kind", PLANNED)
@given(st.sampled_from(MACHINES), st.sampled_from(RATES), st.sampled_from((1, 5, 30, 200, 900)))
def test_a_faster_machine_is_never_slower(kind, machine, path, percent):
    usual_s = seconds(kind, machine)
    assert seconds(kind, machine, f"{path}=+{percent}%") <= usual_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", PLANNED)
@given(st.sampled_from(MACHINES), st.sampled_from(DELAYS), st.sampled_from((1, 10, 50, 90)))
def test_a_shorter_delay_is_never_slower(kind, machine, path, percent):
    usual_s = seconds(kind, machine)
    assert seconds(kind, machine, f"{path}=-{percent}%") <= usual_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", PLANNED)
@given(st.sampled_from(MACHINES), st.sampled_from((1, 5, 30, 200, 900)))
def test_more_arithmetic_is_never_slower(kind, machine, percent):
    usual_s = seconds(kind, machine)
    assert seconds(kind, machine, f"device.peak=+{percent}%") <= usual_s * (1 + 1e-9)


@given(percent=st.integers(5, 200))
def test_a_captured_step_is_never_slower_on_a_faster_network(percent):
    case = CASES["trace"]
    usual_s = case.job(network_factor=1.0).simulated()[0]
    assert case.job(network_factor=1 + percent / 100).simulated()[0] <= usual_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", PLANNED)
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_clock_of_a_machine_scales_time(kind, factor):
    """All rates times a factor and all delays over it: only latencies of memory stay."""
    # Nothing is measured there, and its rate of arithmetic is not bounded by power.
    machine = "p100_pcie"
    faster = [f"{path}=*{factor}" for path in (*RATES, "device.peak") if path != "device.l2.size"]
    shorter = [f"{path}=*{1 / factor}" for path in DELAYS]
    scaled_s = seconds(kind, machine, *faster, *shorter)
    assert scaled_s == pytest.approx(seconds(kind, machine) / factor, rel=1e-3)


@pytest.mark.parametrize("kind", PLANNED)
@given(st.sampled_from(MACHINES), st.integers(0, 400), st.integers(0, 400))
def test_more_memory_never_makes_a_job_fit_less(kind, machine, gib, more_gib):
    less, more = (
        predict_job(on(kind, machine, f"memory={size_gib}GiB", "device.memory.reserved=1GiB"))
        for size_gib in (2 + gib, 2 + gib + more_gib)
    )
    assert more.feasible >= less.feasible
    assert more.iteration_time_s == less.iteration_time_s


@pytest.mark.parametrize("kind", PLANNED)
@given(factor=st.integers(2, 16))
def test_a_larger_batch_never_takes_less_time(kind, factor):
    case, job = CASES[kind], made(kind)
    batch = factor * case.parameters["global_batch_size"]
    larger = case.workload.job(case.platform, {**case.parameters, "global_batch_size": batch})
    larger = larger if job.plan is None else larger.with_plan(job.plan)
    assert larger.simulated()[0] >= job.simulated()[0] * (1 - 1e-9)
    largest = max((account.total_bytes for account in larger.memory()), default=0.0)
    assert largest >= max((account.total_bytes for account in job.memory()), default=0.0)
