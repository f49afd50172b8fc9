from __future__ import annotations

import json

import pytest

import dse as library
from dse.errors import PlanError
from tests.cli.running import answer, dse

CONFIGURATION = ("--platform", "h100_sxm", "--global-batch-size", 16384)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("rank") / "plan.json"
    options = ("--world-size", 4, "--time-limit", 0.5, "--out", path)
    done = dse("shard", "dlrm_tiny", *CONFIGURATION, *options)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize(
    "options",
    [("--program", "ideal"), ("--software-profile", "torchrec")],
    ids=["ideal", "program"],
)
def test_a_ranked_plan_takes_as_long_as_it_is_predicted_to(plan, options):
    (ranked,) = answer("rank", plan, "--model", "dlrm_tiny", *CONFIGURATION, *options)["ranking"]
    predicted = answer(
        "predict", "dlrm_tiny", *CONFIGURATION, "--world-size", 4, "--plan", plan, *options
    )
    assert ranked["iteration_time_s"] == predicted["iteration_time_s"]


@pytest.mark.parametrize("placement", ["strided", "contiguous"])
def test_a_plan_of_a_sharding_group_is_that_of_all_groups(plan, placement):
    groups = ("--replicas", 4, "--replica-placement", placement, "--sync-interval", 50)
    (ranked,) = answer("rank", plan, "--model", "dlrm_tiny", *CONFIGURATION, *groups)["ranking"]
    predicted = answer(
        "predict", "dlrm_tiny", *CONFIGURATION, "--world-size", 16, "--plan", plan, *groups
    )
    assert ranked["iteration_time_s"] == predicted["iteration_time_s"]
    assert (predicted["replicas"], predicted["sharding_group_size"]) == (4, 4)
    # All sixteen ranks are listed: copies of a shard are neighbours, or a group apart.
    memory = predicted["memory_bytes_per_rank"]
    assert len(memory) == len(predicted["breakdown"]) == 16
    alike = [memory[0:4], memory[4:8]] if placement == "strided" else [memory[0::4], memory[1::4]]
    assert [len(set(copies)) for copies in alike] == [1, 1]


def test_a_training_program_takes_longer_than_its_kernels(plan):
    times = [
        answer("rank", plan, "--model", "dlrm_tiny", *CONFIGURATION, *options)["ranking"][0]
        for options in (("--program", "ideal"), ("--software-profile", "torchrec"))
    ]
    assert times[1]["iteration_time_s"] > times[0]["iteration_time_s"]


def test_an_unknown_program_is_one_clear_line(plan):
    done = dse("rank", plan, "--model", "dlrm_tiny", *CONFIGURATION, "--software-profile", "torch")
    assert done.returncode == 2
    assert "torchrec" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("world_size", [4, 8], ids=["another rank", "another world size"])
def test_a_plan_that_does_not_suit_the_job_is_named(plan, world_size, tmp_path):
    document = json.loads(plan.read_text())
    next(iter(document["tables"].values()))["ranks"] = [99]
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(document))
    job = library.Job("dlrm_tiny", "h100_sxm", world_size=world_size, global_batch_size=16384)
    with pytest.raises(PlanError, match=str(wrong)):
        job.predict(wrong)
    for command in (
        ("rank", plan, wrong, "--model", "dlrm_tiny"),
        ("predict", "dlrm_tiny", "--world-size", world_size, "--plan", wrong),
    ):
        done = dse(*command, *CONFIGURATION)
        assert done.returncode == 2
        assert f"error: {wrong}: " in done.stderr
