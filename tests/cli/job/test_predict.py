"""`dse predict` with its explanation, its time line and its comparison."""

from __future__ import annotations

import gzip
import json

import pytest
from typer.testing import CliRunner

from dse.cli._app import app
from dse.cli.job._request import Request
from dse.cli.job._versus import KEYS, changed
from dse.errors import ConfigError
from dse.machine.platforms import load_platform

BASE = ("dlrm_dcnv2", "--platform", "h100_sxm", "--world-size", "8", "--global-batch-size")
BATCH = "55296"
BERT = ("bert_base", "--platform", "h100_sxm")


def run(*arguments):
    done = CliRunner().invoke(app, ["predict", *BASE, BATCH, *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def answer(*arguments):
    return json.loads(run(*arguments, "--json"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan by hand, so that the tests need not search: large tables by row, others by table."""
    from dse.model import load_model
    from dse.sharding import ComputeKernel, ShardingPlan, ShardingType, TablePlan, plan_to_json

    tables = []
    for index, table in enumerate(load_model("dlrm_dcnv2").tables):
        large = table.rows > 10_000_000
        kind = ShardingType.ROW_WISE if large else ShardingType.TABLE_WISE
        ranks = tuple(range(8)) if large else (index % 8,)
        tables.append(TablePlan(table.name, kind, ranks, ComputeKernel.FUSED))
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    path.write_text(plan_to_json(ShardingPlan(8, tuple(tables)), "dlrm_dcnv2"))
    return path


@pytest.fixture(scope="module")
def everything(plan, tmp_path_factory):
    """One run with all options; the answer and the time line."""
    timeline = tmp_path_factory.mktemp("timelines") / "predicted.json.gz"
    versus = "platform=h200_sxm,launch=cuda_graphs"
    options = ("--plan", plan, "--program", "ideal", "--explain", "--timeline", timeline)
    options += ("--versus", versus)
    found = answer(*options)
    return found, json.loads(gzip.decompress(timeline.read_bytes()))


def test_the_fields_of_an_explanation(everything):
    explanation = everything[0]["explanation"]
    assert set(explanation) == {
        "sentence",
        "iteration_time_s",
        "path",
        "tasks",
        "ranks",
        "sensitivities",
        "imbalance",
    }
    assert set(explanation["path"][0]) == {
        "group",
        "resource",
        "resource_name",
        "rank",
        "tasks",
        "seconds",
        "share",
    }
    assert set(explanation["tasks"][0]) == {
        "task",
        "name",
        "group",
        "rank",
        "lane",
        "resource",
        "resource_name",
        "start_s",
        "seconds",
        "last_rank",
        "longest_wait_s",
    }
    assert set(explanation["ranks"][0]) == {
        "rank",
        "compute_s",
        "transfer_s",
        "waiting_s",
        "host_s",
        "idle_s",
        "collective_s",
        "waited_for",
        "movable_s",
        "gain_without_movable_s",
    }
    assert set(explanation["sensitivities"][0]) == {
        "resource",
        "resource_name",
        "factor",
        "iteration_time_s",
        "gain_s",
        "gain",
    }


def test_the_explanation_is_of_this_prediction(everything):
    found = everything[0]
    explanation = found["explanation"]
    length_s = found["iteration_time_s"]
    assert explanation["iteration_time_s"] == pytest.approx(length_s)
    assert sum(share["seconds"] for share in explanation["path"]) == pytest.approx(length_s)
    for rank, parts in zip(explanation["ranks"], found["breakdown"], strict=True):
        assert rank["compute_s"] == pytest.approx(parts["compute_s"])


def test_the_time_line_is_of_this_prediction(everything):
    found, document = everything
    assert document["otherData"]["makespan_us"] == pytest.approx(1e6 * found["iteration_time_s"])
    events = document["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    last_us = max(event["ts"] + event["dur"] for event in slices)
    assert last_us == pytest.approx(1e6 * found["iteration_time_s"], abs=0.01)
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    assert processes == set(range(9))
    for rank, explained in enumerate(found["explanation"]["ranks"]):
        compute_us = sum(
            event["dur"]
            for event in slices
            if event["pid"] == rank and named[rank, event["tid"]] == "compute"
        )
        # Copies run beside kernels, or alone; late launches hide some of both.
        busy_s = explained["compute_s"] + explained["host_s"]
        assert compute_us <= 1e6 * busy_s + 0.2
        transfer_us = sum(
            event["dur"]
            for event in slices
            if event["pid"] == rank and "collective" in event["cat"].split(",")
        )
        assert transfer_us == pytest.approx(1e6 * explained["collective_s"], abs=0.2)
    critical_us = sum(event["dur"] for event in slices if event["cat"] == "critical path")
    assert critical_us == pytest.approx(1e6 * found["iteration_time_s"], abs=0.2)


def test_the_time_line_shows_sizes_reasons_and_the_last_rank(everything):
    events = everything[1]["traceEvents"]
    exchange = next(
        event for event in events if event["ph"] == "X" and event["name"] == "output all-to-all"
    )
    assert exchange["args"]["held_bytes"] > 0
    assert exchange["args"]["bound by"] == "NVSwitch"
    arrows = [event for event in events if event.get("cat") == "arrival"]
    starts = {event["id"]: event for event in arrows if event["ph"] == "s"}
    ends = {event["id"]: event for event in arrows if event["ph"] == "f"}
    assert starts
    assert set(starts) == set(ends)
    assert all(starts[number]["pid"] != ends[number]["pid"] for number in starts)


def test_both_configurations_side_by_side(everything):
    found = everything[0]
    versus = found["versus"]
    assert versus["changes"] == ["platform h200_sxm", "launch cuda_graphs"]
    assert versus["platform"] == "h200_sxm"
    assert len(versus["memory_bytes_per_rank"]) == 8
    difference = versus["difference"]
    change_s = versus["iteration_time_s"] - found["iteration_time_s"]
    assert difference["change_s"] == pytest.approx(change_s)
    steps_s = sum(step["change_s"] for step in difference["steps"])
    assert steps_s == pytest.approx(change_s, rel=1e-9)
    ratio = versus["throughput_ratio"]
    assert ratio["ratio"] == pytest.approx(
        versus["throughput_samples_per_s"] / found["throughput_samples_per_s"]
    )
    assert ratio["ratio_p5"] <= ratio["ratio"] <= ratio["ratio_p95"]
    assert set(difference["steps"][0]) == {
        "group",
        "resource",
        "resource_name",
        "before_s",
        "after_s",
        "change_s",
    }


def test_on_a_terminal(plan):
    shown = run("--plan", plan, "--explain", "--versus", "link=nvswitch,precision=fp32")
    assert "bound by " in shown
    assert "critical path" in shown
    assert "one resource 1.1 times as fast" in shown
    assert "from A to B, in ms" in shown
    assert "iteration of B" in shown
    # A narrow terminal cuts off no figure.
    assert "…" not in shown.split("from A to B, in ms")[1]


def test_without_the_options_nothing_is_added(plan):
    found = answer("--plan", plan)
    assert "explanation" not in found
    assert "versus" not in found


# --- the second configuration --------------------------------------------------------------------

REQUEST = Request(
    model="dlrm_dcnv2",
    platform="h100_sxm",
    world_size=8,
    global_batch_size=65536,
    plan="plan.json",
    parameters={"launch": "eager"},
)


def test_changes_are_those_named():
    other, words = changed(REQUEST, "world-size=16, precision=bf16,plan=search")
    assert (other.world_size, other.plan) == (16, "search")
    assert other.parameters == {"launch": "eager", "precision": "bf16"}
    assert (other.platform, other.global_batch_size) == ("h100_sxm", 65536)
    assert words == ("world_size 16", "precision bf16", "plan search")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other.yaml", "platform: h200_sxm\nworld_size: 16\n"),
        ("other.json", '{"platform": "h200_sxm", "world_size": 16}'),
    ],
)
def test_changes_from_a_file(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    other, words = changed(REQUEST, str(path))
    assert (other.platform, other.world_size) == ("h200_sxm", 16)
    assert words == ("platform h200_sxm", "world_size 16")


def test_changes_have_the_types_of_the_options():
    other, _ = changed(REQUEST, "hot_rows=no,recompute_layers=0,offload=none,launch=")
    assert other.parameters == {"hot_rows": False, "recompute_layers": 0, "offload": "none"}


def test_a_plan_file_is_no_file_of_changes():
    assert changed(REQUEST, "plan=other.json")[0].plan == "other.json"


@pytest.mark.parametrize(
    ("versus", "message"),
    [
        ("wrld_size=16", "unknown key `wrld_size`; did you mean `world_size`?"),
        ("colour=red", f"unknown key `colour`; keys are {', '.join(KEYS)}"),
        ("world_size=many", "world_size: expected a whole number from 1, found `many`"),
        ("world_size=0", "found `0`"),
        ("platform=h200_sxm,platform=cpu", "`platform` is given twice"),
        ("h200_sxm", "expected key=value pairs"),
        ("platform=h100_sxm", "changes nothing"),
        ("", "expected key=value pairs"),
        ("missing.yaml", "no such file"),
    ],
)
def test_bad_changes_say_what_is_expected(versus, message):
    with pytest.raises(ConfigError) as caught:
        changed(REQUEST, versus)
    assert message in str(caught.value)


def test_bad_files_say_what_is_expected(tmp_path):
    for text, message in (
        ("- platform\n", "expected keys with values"),
        ("a: [", "not valid YAML"),
        ("platform: [a, b]\n", "platform: expected text"),
        ("precison: bf16\n", "did you mean `precision`?"),
    ):
        path = tmp_path / "bad.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            changed(REQUEST, str(path))
        assert message in str(caught.value)


def test_a_bad_key_stops_before_anything_is_computed():
    with pytest.raises(ConfigError, match="unknown key"):
        run("--plan", "there-is-no-such-plan.json", "--versus", "speed=2")


def test_the_same_plan_on_other_ranks_is_an_error_that_says_so(plan):
    with pytest.raises(Exception, match="8"):
        run("--plan", plan, "--versus", "world_size=16,plan=same,global_batch_size=65536")


# --- training programs ---------------------------------------------------------------------------


def test_a_training_program_changes_the_prediction(plan):
    plain, eager = (answer("--plan", plan, *options) for options in (("--program", "ideal"), ()))
    assert (plain["program"], plain["is_bound"]) == ("ideal", True)
    assert (eager["program"], eager["is_bound"]) == ("torchrec", False)
    # Calls of the framework that the plain loop does not have.
    assert eager["iteration_time_s"] > plain["iteration_time_s"]


def test_a_launch_mode_overrides_the_program(plan):
    captured, same, eager = (
        answer("--plan", plan, "--program", "hugectr", *options)["iteration_time_s"]
        for options in ((), ("--launch", "cuda_graphs"), ("--launch", "eager"))
    )
    assert captured == same
    assert eager > captured


def test_the_memory_of_all_stages_is_one_table_on_a_narrow_terminal():
    words = "predict gpt_22b --platform a100_sxm_80 --world-size 8 --global-batch-size 8"
    words += " --tensor 4 --pipeline 2 --program megatron"
    done = CliRunner().invoke(app, words.split(), env={"COLUMNS": "80"})
    lines = done.output.splitlines()
    first = lines.index("memory of a rank, in GiB")
    last = next(at for at in range(first, len(lines)) if lines[at].startswith("usable"))
    rows = [line.split() for line in lines[last - 2 : last]]
    assert [row[0] for row in rows] == ["0", "1"]
    for _, *parts, total in rows:
        assert sum(map(float, parts)) == pytest.approx(float(total), abs=0.04)


def test_two_training_programs_side_by_side(plan):
    found = answer("--plan", plan, "--program", "ideal", "--versus", "software_profile=torchrec")
    versus = found["versus"]
    assert versus["changes"] == ["program torchrec"]
    assert versus["program"] == "torchrec"
    assert versus["iteration_time_s"] > found["iteration_time_s"]
    steps_s = sum(step["change_s"] for step in versus["difference"]["steps"])
    change_s = versus["iteration_time_s"] - found["iteration_time_s"]
    assert steps_s == pytest.approx(change_s, rel=1e-9)


def test_an_unknown_training_program_says_which_there_are(plan):
    with pytest.raises(ConfigError, match="did you mean `torchrec`"):
        run("--plan", plan, "--program", "torchrek")


def test_prices_of_a_provider_go_with_its_network():
    arguments = ("dlrm_tiny", "--platform", "h100_sxm", "--world-size", "16")
    arguments += ("--global-batch-size", "16384", "--json")

    def fields(*more):
        done = CliRunner().invoke(app, ["predict", *arguments, *more])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    aws = fields("--price-provider", "AWS", "--versus", "price_provider=Azure")
    assert (aws["network"], aws["rented"]) == ("efa_3200g", "2 × AWS p5.48xlarge")
    assert (aws["versus"]["network"], aws["versus"]["price_usd_per_hour"]) == (
        "infiniband_ndr400",
        196.64,
    )
    none = fields("--price-provider", "AWS", "--network", "infiniband_ndr400")
    assert (none["price_usd_per_hour"], none["rented"]) == (None, None)
    assert "p5.48xlarge has efa_3200g" in none["no_price"]


def test_cheaper_instances_over_another_network_are_named():
    def shown(*options):
        job = (*BERT, "--world-size", "16", "--global-batch-size", "64", *options)
        text = CliRunner().invoke(app, ["predict", *job]).output
        return [line for line in text.splitlines() if line.startswith("cheaper: ")]

    h100 = load_platform("h100_sxm")
    default, cheapest = h100.quote(16), h100.quote(16, network=None)
    assert cheapest.usd_per_hour < default.usd_per_hour
    (network,) = cheapest.offer.networks
    (line,) = shown()
    assert line.startswith(f"cheaper: {cheapest.offer.provider} {cheapest.offer.instance} for ")
    assert shown("--network", network) == shown("--network", "infiniband_ndr400") == []


def test_nodes_are_connected_as_what_can_be_rented():
    b200 = load_platform("b200_sxm")
    assert b200.quote(16) is None
    offered = b200.quote(16, network=None)
    job = "bert_base --platform b200_sxm --world-size 16 --global-batch-size 64"
    answer = json.loads(CliRunner().invoke(app, ["predict", *job.split(), "--json"]).output)
    assert answer["network"] == offered.offer.networks[0]
    assert answer["rented"] == f"2 × {offered.offer.provider} {offered.offer.instance}"
