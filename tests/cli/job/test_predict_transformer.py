"""`dse predict` of transformers, with its explanation, its time line and its comparison."""

from __future__ import annotations

import gzip
import json

import pytest
from typer.testing import CliRunner

from dse.cli._app import app
from dse.errors import ConfigError, UnknownNameError
from tests.cli.running import dse

BASE = ("--platform", "a100_sxm_80", "--world-size", "16", "--global-batch-size", "16")
SPREAD = ("--tensor", "4", "--pipeline", "2", "--sequence-parallel", "--recompute", "selective")


def run(*arguments, model="gpt_22b", code=0):
    done = CliRunner().invoke(app, ["predict", model, *BASE, *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def answer(*arguments, model="gpt_22b", code=0):
    return json.loads(run(*arguments, "--json", model=model, code=code))


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """One run with all options; the answer and the time line."""
    timeline = tmp_path_factory.mktemp("timelines") / "predicted.json.gz"
    versus = "recompute=full,tensor=8,sequence_parallel=false"
    found = answer(*SPREAD, "--explain", "--timeline", timeline, "--versus", versus)
    return found, json.loads(gzip.decompress(timeline.read_bytes()))


@pytest.mark.parametrize(("program", "usual"), [("composer", False), ("torchtitan", True)])
def test_whether_sequences_are_split_beside_tensors_is_up_to_the_program(program, usual):
    found = answer("--tensor", "4", "--program", program, model="mpt_3b")
    assert found["parallelism"]["sequence_parallel"] is usual


def test_the_fields_of_the_contract(everything):
    found = everything[0]
    assert found["model"] == "gpt_22b"
    assert found["platform"] == "a100_sxm_80"
    assert (found["world_size"], found["global_batch_size"]) == (16, 16)
    assert found["parallelism"]["data"] == 2
    assert found["parallelism"]["recompute"] == "selective"
    assert found["micro_batches"] == 8
    seconds = found["iteration_time_s"]
    assert found["iteration_time_p5_s"] < seconds < found["iteration_time_p95_s"]
    assert found["throughput_samples_per_s"] == pytest.approx(16 / seconds)
    assert found["throughput_tokens_per_s"] == pytest.approx(16 * 2048 / seconds)
    assert 0 < found["model_flops_utilization"] < 1
    price = found["price_usd_per_hour"]
    expected = price / 3600 * seconds / 16 * 1e6
    assert found["cost_usd_per_million_samples"] == pytest.approx(expected)


def test_ranks_of_a_stage_are_alike(everything):
    found = everything[0]
    memory, stages = found["memory_bytes_per_rank"], found["stages"]
    assert len(memory) == len(found["breakdown"]) == 16
    assert [(stage["first_rank"], stage["ranks"]) for stage in stages] == [(0, 8), (8, 8)]
    for rank in range(16):
        stage = stages[rank // 8]
        assert memory[rank] == stage["memory_bytes"] == sum(stage["memory"].values())
        assert found["breakdown"][rank]["idle_s"] == stage["idle_s"]
        parts = found["breakdown"][rank].values()
        assert sum(parts) == pytest.approx(found["iteration_time_s"], rel=1e-6)
    assert found["feasible"] == (max(memory) <= found["usable_memory_bytes"])


def test_the_explanation_is_of_this_prediction(everything):
    found = everything[0]
    explanation = found["explanation"]
    length_s = found["iteration_time_s"]
    assert sum(share["seconds"] for share in explanation["path"]) == pytest.approx(length_s)
    assert sum(share["share"] for share in explanation["path"]) == pytest.approx(1.0)
    assert [rank["rank"] for rank in explanation["ranks"]] == [0, 1]
    groups = {share["group"] for share in explanation["path"]}
    assert {"attention", "feed-forward", "tensor-parallel collectives", "optimizer"} <= groups


def test_the_time_line_is_of_this_prediction(everything):
    found, document = everything
    assert document["otherData"]["makespan_us"] == pytest.approx(1e6 * found["iteration_time_s"])
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    last_us = max(event["ts"] + event["dur"] for event in slices)
    assert last_us == pytest.approx(1e6 * found["iteration_time_s"], abs=0.01)
    for stage, parts in enumerate(found["stages"]):
        compute_us = sum(
            event["dur"]
            for event in slices
            if event["pid"] == stage and "compute" in event["cat"].split(",")
        )
        assert compute_us == pytest.approx(1e6 * parts["compute_s"], abs=1.0)
    forward = next(event for event in slices if event["name"] == "forward: feed-forward")
    assert forward["args"]["bound by"] == "tensor cores"


def test_both_configurations_side_by_side(everything):
    found = everything[0]
    versus = found["versus"]
    assert versus["changes"] == ["recompute full", "tensor 8", "sequence_parallel False"]
    assert versus["parallelism"]["tensor"] == 8
    assert versus["parallelism"]["data"] == 1
    assert versus["parallelism"]["sequence_parallel"] is False
    difference = versus["difference"]
    change_s = versus["iteration_time_s"] - found["iteration_time_s"]
    assert difference["change_s"] == pytest.approx(change_s)
    steps_s = sum(step["change_s"] for step in difference["steps"])
    assert steps_s == pytest.approx(change_s, rel=1e-9)
    ratio = versus["throughput_ratio"]
    assert ratio["ratio"] == pytest.approx(
        versus["throughput_samples_per_s"] / found["throughput_samples_per_s"]
    )


def test_on_a_terminal():
    shown = run(*SPREAD, "--explain", "--versus", "recompute=full")
    assert "tensor 4 × pipeline 2 × data 2, micro batch 1, sequence parallel" in shown
    for word in ("tokens/s", "MFU", "bubble", "activations", "on stage"):
        assert word in shown
    assert "one resource 1.1 times as fast" in shown
    assert "from A to B, in ms" in shown
    assert "without its tables" not in shown
    assert "…" not in shown


def test_without_options_all_ranks_are_replicas():
    found = answer("--data-sharding", "zero3", "--software", "composer", model="mpt_1b")
    assert found["parallelism"]["data"] == 16
    assert found["parallelism"]["data_sharding"] == "zero3"
    assert found["program"] == "composer"
    assert len(found["stages"]) == 1
    assert "explanation" not in found
    assert "versus" not in found


def test_what_does_not_fit_is_predicted_and_says_so():
    found = answer(code=1)
    assert found["feasible"] is False
    assert "out of memory: every rank needs" in found["infeasible_reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--plan", "plan.json"), "--plan: not for `gpt_22b`, which is a transformer"),
        (("--hot-rows",), "--hot-rows: not for `gpt_22b`"),
        (("--launch", "cuda_graphs", "--recompute", "full"), "recompute selective"),
        (("--launch", "cuda_graphs", "--program", "nanotron"), "megatron_bridge"),
        (("--host-profile", "h.json"), "h.json"),
        (("--versus", "plan=same"), "--plan: not for"),
        (("--tensor", "3"), "tensor 3 × pipeline 1 × context 1 = 3 does not divide 16"),
        (("--pipeline", "16", "--interleave", "2"), "does not divide"),
        (("--recompute-modules", "mpl"), "--recompute-modules: expected one or several of"),
        (("--offload-layers", "4"), "use activations or all"),
        (("--sequence-parallel",), "use tensor > 1"),
        (("--versus", "tensor=0"), "tensor: expected a whole number from 1, found `0`"),
        (("--versus", "sequence_parallel=7"), "expected true or false, found `7`"),
        (("--versus", "model=dlrm_dcnv2"), "is a recommendation model"),
    ],
)
def test_bad_options_say_what_is_expected(arguments, message):
    with pytest.raises(ConfigError) as caught:
        run(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--recompute", "some"), "--recompute: expected one of `none`, `selective`, `full`"),
        (("--zero-stage", "fsdp"), "--data-sharding: expected one of `none`, `zero1`"),
    ],
)
def test_options_with_fixed_values_name_them(arguments, message):
    done = dse("predict", "gpt_22b", *BASE, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_an_unknown_training_program_says_which_there_are():
    with pytest.raises(UnknownNameError, match="megatron"):
        run("--software", "megatorn")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tensor", "2"),
        ("--no-sequence-parallel",),
        ("--micro-batch-size", "1"),
        ("--recompute", "none"),
    ],
)
def test_a_recommendation_model_has_no_parallelism_of_transformers(arguments):
    with pytest.raises(ConfigError) as caught:
        run(*arguments, model="dlrm_dcnv2")
    option = arguments[0].replace("--no-", "--")
    assert f"{option}: not for `dlrm_dcnv2`, which is a recommendation model" in str(caught.value)


def test_recomputation_of_layers_and_offload_are_options():
    options = ("--tensor", "8", "--program", "megatron")
    chosen = ("--recompute", "full", "--recompute-layers", "12", "--offload", "all")
    plain, found = answer(*options), answer(*options, *chosen)
    spread = found["parallelism"]
    assert (spread["recompute_layers"], spread["offload"]) == (12, "all")
    stage = found["stages"][0]
    assert stage["host_memory_bytes"] > 0 == plain["stages"][0]["host_memory_bytes"]
    assert stage["memory"]["optimizer_bytes"] == 0
    assert stage["memory_bytes"] < plain["stages"][0]["memory_bytes"]
    assert sum(stage["memory"].values()) == pytest.approx(stage["memory_bytes"])
    assert found["iteration_time_s"] > plain["iteration_time_s"]
    assert 0.5 < found["fit_probability"] <= 1.0


def test_modules_are_joined_in_a_fixed_order():
    chosen = ("--recompute", "selective", "--recompute-modules", "mlp+layernorm")
    found = answer("--tensor", "8", *chosen)
    assert found["parallelism"]["recompute_modules"] == ["layernorm", "mlp"]
