"""`--set`: other figures of platforms, in every command that predicts."""

from __future__ import annotations

import json

import pytest

from dse.search import load_study
from tests.cli.running import answer, dse

#: Under a program whose host does not hide the devices.
CONFIGURATION = (
    *("dlrm_ddp", "--platform", "h100_sxm", "--global-batch-size", 16384),
    *("--program", "ideal"),
)
EIGHT = ("--world-size", 8)
PRICE = ("--set", "price=2.10 USD/GPU/h")


@pytest.fixture(scope="module")
def listed():
    return answer("predict", *CONFIGURATION, *EIGHT)


def test_a_price(listed):
    found = answer("predict", *CONFIGURATION, *EIGHT, *PRICE)
    assert found["price_usd_per_hour"] == pytest.approx(16.80)
    assert found["iteration_time_s"] == listed["iteration_time_s"]
    rate = found["throughput_samples_per_s"]
    assert found["cost_usd_per_million_samples"] == pytest.approx(16.80 / 3600 / rate * 1e6)
    assert {change["after"] for change in found["changes"]} == {"2.10 USD/GPU/h"}
    assert "changes" not in listed


def test_one_price_for_all_offers_is_one_line():
    shown = dse("predict", *CONFIGURATION, *EIGHT, *PRICE).stdout
    assert [line for line in shown.splitlines() if line.startswith("changed: ")] == [
        "changed: 6 prices of h100_sxm → 2.10 USD/GPU/h"
    ]


def test_figures_that_make_no_difference_are_named():
    power = ("--set", "power=300W")
    shown = dse("predict", *CONFIGURATION, *EIGHT, *power, *PRICE).stdout
    assert "no difference to this prediction: device.power.limit" in shown
    # Less memory is another probability to fit, and slower links are another time.
    for figure in ("memory=1GiB", "link.bandwidth=*0.1"):
        shown = dse("predict", *CONFIGURATION, *EIGHT, *power, "--set", figure).stdout
        assert "no difference" not in shown
    assert "no difference" not in dse("predict", *CONFIGURATION, *EIGHT, *PRICE).stdout


def test_nodes_without_which_there_would_be_no_such_job():
    twelve = ("--world-size", "12", "--global-batch-size", "49152")
    found = answer("predict", *CONFIGURATION, *twelve, "--set", "node.devices=6")
    assert found["feasible"]


def test_a_bandwidth(listed):
    slower = answer("predict", *CONFIGURATION, *EIGHT, "--set", "link.bandwidth=*0.1")
    assert slower["iteration_time_s"] > listed["iteration_time_s"]
    (change,) = [one for one in slower["changes"] if one["quantity"] == "links.nvswitch.bandwidth"]
    assert (change["before"], change["after"]) == ("450 GB/s", "45 GB/s")


def test_the_other_side_of_a_comparison():
    both = ("--versus", "platform=a100_sxm_80")
    every = answer("predict", *CONFIGURATION, *EIGHT, *both, *PRICE)
    assert every["price_usd_per_hour"] == pytest.approx(16.80)
    assert every["versus"]["price_usd_per_hour"] == pytest.approx(16.80)
    one = ("--set", "a100_sxm_80.price=1 USD/GPU/h")
    single = answer("predict", *CONFIGURATION, *EIGHT, *both, *one)
    assert single["price_usd_per_hour"] == pytest.approx(55.04)
    assert single["versus"]["price_usd_per_hour"] == 8
    assert "changes" not in single


def test_a_comparison_with_machines_of_ones_own(tmp_path):
    path = tmp_path / "other.json"
    own = {"from": "h100_sxm", "price": "2.10 USD/GPU/h", "name": "mine"}
    path.write_text(json.dumps({"platform": own}))
    found = answer("predict", *CONFIGURATION, *EIGHT, "--versus", path)
    assert found["versus"]["platform"] == "mine"
    assert found["versus"]["price_usd_per_hour"] == pytest.approx(16.80)
    assert found["versus"]["changes"] == ["platform mine"]


def test_plans(tmp_path):
    plan = tmp_path / "plan.json"
    options = ("--world-size", 4, "--time-limit", 0.2)
    sharded = answer("shard", *CONFIGURATION, *options, "--out", plan, *PRICE)
    assert sharded["price_usd_per_hour"] == pytest.approx(8.40)
    assert sharded["changes"]
    model, *rest = CONFIGURATION
    ranking = answer("rank", plan, "--model", model, *rest, *PRICE)
    assert ranking["ranking"][0]["price_usd_per_hour"] == pytest.approx(8.40)
    assert ranking["changes"] == sharded["changes"]


def test_a_recommendation():
    where = ("--platforms", "h100_sxm,a100_sxm_80", "--world-sizes", 8)
    goal = ("dlrm_ddp", "--target", "1M samples/s")
    change = ("--set", "h100_sxm.price=1 USD/GPU/h")
    found = answer("recommend", *goal, *where, *change)["answer"]
    assert (found["platform"], found["price_usd_per_hour"]) == ("h100_sxm", 8)


SPACE = """\
schema_version: 1
name: small
workload: {model: dlrm_ddp}
parameters:
  platform: [h100_sxm, a100_sxm_80]
  world_size: [8]
  global_batch_size: [4096]
  sharding_types: [[table_wise]]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
search: {sampler: grid, trials: 2, improvement_rounds: 0, planners: [size_greedy]}
"""


def test_a_study(tmp_path):
    space, out = tmp_path / "space.yaml", tmp_path / "study"
    space.write_text(SPACE)
    done = dse("run", space, "--out", out, "--set", "h100_sxm.price=2.10 USD/GPU/h")
    assert done.returncode == 0, done.stderr
    prices = {
        one.configuration.platform: one.prediction.price_usd_per_hour
        for one in load_study(out).result.records
    }
    assert prices["h100_sxm"] == pytest.approx(16.80)
    assert prices["a100_sxm_80"] != pytest.approx(16.80)
    again = dse("run", space, "--out", out, "--resume")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("price", "PATH=VALUE"),
        ("prise=2 USD/h", "did you mean `price"),
        ("h100_sxn.price=2 USD/h", "did you mean `h100_sxm`"),
        ("price=2", "USD/GPU/h"),
        ("link.bandwith=+1%", "did you mean `bandwidth`"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "shard"])
def test_a_mistake_is_one_line(command, text, words):
    done = dse(command, *CONFIGURATION, *EIGHT, "--set", text)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --set ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
