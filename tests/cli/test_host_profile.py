"""`--host-profile`: a measured host, alike in every command that predicts."""

from __future__ import annotations

import pytest

import dse as package
from dse.errors import ConfigError
from dse.machine.host import (
    Figure,
    HostProfile,
    ProfileSource,
    SharedFigures,
    load_host_profile,
    write_host_profile,
)
from dse.search import load_study, stored_platform
from dse.search.revise import revise_study, study_evaluator
from tests.cli.running import answer, dse

JOB = ("--platform", "h100_sxm", "--global-batch-size", 16384)
EIGHT = ("--world-size", 8)

SPACE = """\
schema_version: 1
name: measured
workload: {model: dlrm_ddp}
parameters:
  platform: PLATFORM
  world_size: [8]
  global_batch_size: [16384]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
search: {sampler: grid}
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """A host that is so slow that nothing else counts."""
    path = tmp_path_factory.mktemp("host") / "host.yaml"
    slow = Figure(300e-6, 0.3, 9)
    shared = SharedFigures(slow, slow, slow, slow, slow, slow)
    write_host_profile(path, HostProfile("slow host", ProfileSource((), ("H100",)), shared))
    return path


@pytest.fixture(scope="module")
def predicted(profile):
    return answer("predict", "dlrm_ddp", *JOB, *EIGHT, "--host-profile", profile)


@pytest.fixture(scope="module")
def study(profile, tmp_path_factory):
    """A study that was run with the option, its profile gone since."""
    folder = tmp_path_factory.mktemp("study")
    own = folder / "own.yaml"
    own.write_bytes(profile.read_bytes())
    (folder / "space.yaml").write_text(SPACE.replace("PLATFORM", "h100_sxm"))
    done = dse(
        "run", folder / "space.yaml", "--out", folder / "out", "--host-profile", own, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    own.unlink()
    return folder / "out"


def test_a_prediction_is_bound_by_it(predicted, profile):
    without = answer("predict", "dlrm_ddp", *JOB, *EIGHT)
    assert predicted["iteration_time_s"] > 5 * without["iteration_time_s"]
    assert predicted["bound_by"] == "host"
    assert predicted["host_overheads"] == str(profile)
    assert without["host_overheads"] == "h100_sxm"
    (change,) = predicted["changes"]
    assert (change["quantity"], change["after"]) == ("host.profile", str(profile))


def test_plans_and_their_order(predicted, profile, tmp_path):
    plan = tmp_path / "plan.json"
    option = ("--host-profile", profile)
    sharded = answer("shard", "dlrm_ddp", *JOB, *EIGHT, *option, "--out", plan)
    assert sharded["iteration_time_s"] == pytest.approx(predicted["iteration_time_s"], rel=1e-9)
    assert sharded["lower_bound_s"] <= sharded["iteration_time_s"]
    (ranked,) = answer("rank", plan, "--model", "dlrm_ddp", *JOB, *option)["ranking"]
    assert ranked["iteration_time_s"] == pytest.approx(predicted["iteration_time_s"], rel=1e-9)


def test_a_recommendation(predicted, profile):
    found = answer(
        *("recommend", "dlrm_ddp", "--target", "1000 samples/s", "--platforms", "h100_sxm"),
        *("--world-sizes", 8, "--batch-sizes", 16384, "--host-profile", profile),
    )
    assert f"with host.profile={profile}" in found["space"]
    assert found["answer"]["iteration_time_s"] == pytest.approx(
        predicted["iteration_time_s"], rel=1e-9
    )


def test_the_other_side_of_a_comparison(predicted, profile):
    found = answer("predict", "dlrm_ddp", *JOB, *EIGHT, "--versus", f"host_profile={profile}")[
        "versus"
    ]
    assert found["iteration_time_s"] == predicted["iteration_time_s"]


def test_a_study_keeps_it(predicted, study):
    (record,) = load_study(study).result.front
    expected = pytest.approx(predicted["iteration_time_s"], rel=1e-9)
    assert record.prediction.iteration_time_s == expected
    result = load_study(study).result
    assert stored_platform(result, "h100_sxm").host.profile.name == "slow host"
    again = study_evaluator(result).predict(record.configuration)
    assert again.iteration_time_s == expected
    facts = {fact.quantity: fact for fact in result.facts}
    assert facts["host.profile"].value == "slow host"
    assert "own.yaml" in facts["host.profile"].source
    assert "slow host" in (study / "report.html").read_text()


def test_a_resumed_study_has_no_use_for_the_file(study):
    done = dse("run", study.parent / "space.yaml", "--out", study, "--resume", cwd=study.parent)
    assert done.returncode == 0, done.stderr
    result = load_study(study).result
    assert stored_platform(result, "h100_sxm").host.profile.name == "slow host"


def test_a_what_if_keeps_plans(profile, tmp_path):
    space, out, after = (tmp_path / name for name in ("space.yaml", "out", "after"))
    space.write_text(SPACE.replace("PLATFORM", "h100_sxm"))
    assert dse("run", space, "--out", out).returncode == 0
    found = answer("whatif", out, "--host-profile", profile, "--out", after)
    assert [one["after"] for one in found["figures"]] == [str(profile)]
    assert found["candidates"]["simulated"] > 0
    (record,) = load_study(after).result.front
    (plan,) = (out / "plans").glob("*.json")
    option = ("--plan", plan, "--host-profile", profile)
    predicted = answer("predict", "dlrm_ddp", *JOB, *EIGHT, *option)
    assert record.prediction.iteration_time_s == pytest.approx(
        predicted["iteration_time_s"], rel=1e-9
    )
    again = answer("whatif", out, "--host-profile", profile, "--replan", 1)
    assert again["searched_again"] == [{"number": record.number, "better": True}]
    sharded = answer("shard", "dlrm_ddp", *JOB, *EIGHT, "--host-profile", profile)
    (best,) = [one["after"] for one in again["best"]]
    assert best == pytest.approx(sharded["throughput_samples_per_s"], rel=1e-9)
    compared = answer("compare", out, after)
    assert any("host.profile" in str(one) for one in compared["differences"])


def test_a_space_names_it(predicted, profile, tmp_path):
    folder = tmp_path / "spaces"
    folder.mkdir()
    (folder / "host.yaml").write_bytes(profile.read_bytes())
    platform = "{from: h100_sxm, name: mine, host: {profile: host.yaml}}"
    (folder / "space.yaml").write_text(SPACE.replace("PLATFORM", platform))
    found = package.run(folder / "space.yaml", out=tmp_path / "out", executor="serial")
    (folder / "host.yaml").unlink()
    (record,) = found.best_trials
    assert record.prediction.iteration_time_s == pytest.approx(
        predicted["iteration_time_s"], rel=1e-9
    )
    kept = load_study(tmp_path / "out").result
    assert stored_platform(kept, "mine").host.profile.name == "slow host"
    cheaper = revise_study(kept, ["price=1 USD/GPU/h"])
    assert cheaper.repriced == len(kept.front)


def test_python_has_the_same_argument(predicted, profile, tmp_path):
    job = package.Job(
        "dlrm_ddp", "h100_sxm", world_size=8, global_batch_size=16384, host_profile=profile
    )
    assert job.predict().iteration_time_s == predicted["iteration_time_s"]
    loaded = package.Job(
        "dlrm_ddp",
        "h100_sxm",
        world_size=8,
        global_batch_size=16384,
        host_profile=load_host_profile(profile),
    )
    assert loaded.predict().iteration_time_s == predicted["iteration_time_s"]
    space = tmp_path / "space.yaml"
    space.write_text(SPACE.replace("PLATFORM", "h100_sxm"))
    study = package.create_study(
        space, host_profile=profile, executor="serial", out=tmp_path / "out"
    )
    (best,) = study.optimize(1).best_trials
    assert best.prediction.iteration_time_s == pytest.approx(
        predicted["iteration_time_s"], rel=1e-9
    )
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        package.recommend("dlrm_ddp", target="1 samples/s", host_profile=tmp_path / "none.yaml")
