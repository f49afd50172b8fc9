"""Studies on platforms with prices and networks of one's own."""

from __future__ import annotations

import shutil

import pytest

import dse
from dse.errors import ConfigError, StudyError
from dse.search import RunOptions, load_study, stored_platform, stored_space
from dse.search import run as run_study
from dse.search.revise import revise_study, study_evaluator
from tests.conftest import ROOT

PRICED = "h100_sxm (2.10 USD/GPU/h)"
SPACE = """\
schema_version: 1
name: own
workload: {model: dlrm_tiny}
parameters:
  platform:
    - h100_sxm
    - {from: h100_sxm, price: 2.10 USD/GPU/h}
    - {from: BASE, price: 9 USD/h, name: my_a100, network: {bandwidth: 100 Gbit/s}}
  world_size: [8, 16]
  global_batch_size: [16384]
  sharding_types: [[table_wise]]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
search: {sampler: grid, trials: 6, batch: 3, improvement_rounds: 0, planners: [size_greedy]}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study whose space and platform files are gone."""
    folder = tmp_path_factory.mktemp("own")
    base, space = folder / "a100.yaml", folder / "space.yaml"
    shutil.copy(ROOT / "platforms" / "a100_sxm_80.yaml", base)
    space.write_text(SPACE.replace("BASE", str(base)))
    run_study(space, RunOptions(out=folder / "study", executor="serial"))
    base.unlink()
    space.unlink()
    return load_study(folder / "study")


def record(study, platform, world_size):
    return next(
        one
        for one in study.result.records
        if (one.configuration.platform, one.configuration.world_size) == (platform, world_size)
    )


def test_the_price_is_the_whole_answer(study):
    # Two nodes with the platform's own network, InfiniBand, are offered by Azure only.
    for ranks, price in ((8, 55.04), (16, 2 * 98.32)):
        listed, priced = record(study, "h100_sxm", ranks), record(study, PRICED, ranks)
        assert priced.prediction.price_usd_per_hour == pytest.approx(2.10 * ranks)
        assert listed.prediction.price_usd_per_hour == pytest.approx(price)
        assert priced.prediction.iteration_time_s == listed.prediction.iteration_time_s
        rate = priced.metrics["throughput_samples_per_s"]
        assert priced.metrics["cost_usd_per_million_samples"] == pytest.approx(
            2.10 * ranks / 3600 / rate * 1e6
        )
    assert record(study, "my_a100", 16).prediction.price_usd_per_hour == 18


def test_a_study_keeps_its_platforms(study):
    found = stored_platform(study.result, "my_a100")
    assert {network.nic_bandwidth_bytes_per_s for network in found.networks} == {12.5e9}
    assert stored_space(study.result).choices("platform") == ("h100_sxm", PRICED, "my_a100")
    facts = {(one.subject, one.quantity): one for one in study.result.facts}
    price = facts[PRICED, "price own price"]
    assert (price.value, price.origin) == ("2.10 USD/GPU/h", "given")
    assert "space.yaml" in price.source
    roles = {(one.role, one.name) for one in study.result.inputs}
    assert {("platform", PRICED), ("platform", "my_a100"), ("base platform", "h100_sxm")} <= roles
    assert all(len(one.sha256) == 64 for one in study.result.inputs)


def test_stored_candidates_have_the_same_answers(study):
    evaluator = study_evaluator(study.result)
    for one in study.result.records:
        again = evaluator.predict(one.configuration)
        assert again.iteration_time_s == one.prediction.iteration_time_s
        assert again.price_usd_per_hour == one.prediction.price_usd_per_hour


def test_what_if(study):
    revision = revise_study(study.result, ["my_a100.price=1 USD/GPU/h"])
    prices = {
        (
            one.configuration.platform,
            one.configuration.world_size,
        ): one.prediction.price_usd_per_hour
        for one in revision.after.records
    }
    assert (prices["my_a100", 8], prices["my_a100", 16]) == (8, 16)
    assert prices[PRICED, 8] == pytest.approx(16.8)
    assert (revision.repriced, revision.simulated) == (2, 0)


def test_the_page_names_them(study, tmp_path):
    text = dse.load_study(study.directory.root).report(tmp_path / "page.html").read_text()
    assert PRICED in text
    assert "USD per GPU" in text


IN_MEMORY = {
    "schema_version": 1,
    "name": "own in memory",
    "workload": {"model": "dlrm_tiny"},
    "parameters": {
        "platform": {"from": "h100_sxm", "price": "2.10 USD/GPU/h"},
        "world_size": [2, 4, 8],
        "global_batch_size": [4096, 8192],
        "sharding_types": [["table_wise"]],
    },
    "objectives": [
        {"metric": "throughput_samples_per_s", "direction": "maximize"},
        {"metric": "cost_usd_per_million_samples", "direction": "minimize"},
    ],
    "search": {"sampler": "random", "trials": 2, "batch": 2, "improvement_rounds": 0},
}


def test_a_study_is_resumed_from_what_it_keeps(tmp_path):
    started = dse.create_study(IN_MEMORY, executor="serial", out=tmp_path / "study").optimize(2)
    done = dse.load_study(tmp_path / "study").optimize(2)
    assert done.trials[:2] == started.trials
    assert {one.configuration.platform for one in done.trials} == {PRICED}
    whole = dse.create_study(IN_MEMORY, executor="serial", out=tmp_path / "whole").optimize(4)
    assert [one.values for one in whole.trials] == [one.values for one in done.trials]


def test_overrides_are_a_part_of_the_study(tmp_path):
    settings = {"executor": "serial", "out": tmp_path / "study"}
    overrides = ["price=3 USD/GPU/h", "link.bandwidth=*0.5"]
    first = dse.run(IN_MEMORY, trials=2, overrides=overrides, **settings)
    for one in first.trials:
        ranks = one.configuration.world_size
        assert one.prediction.price_usd_per_hour == pytest.approx(3 * ranks)
    resumed = dse.run(IN_MEMORY, trials=4, resume=True, **settings)
    assert resumed.trials[:2] == first.trials
    assert all(
        one.prediction.price_usd_per_hour == pytest.approx(3 * one.configuration.world_size)
        for one in resumed.trials
    )
    links = {link.name: link for link in stored_platform(resumed.result, PRICED).links}
    assert links["nvswitch"].bandwidth_bytes_per_s == 225e9
    with pytest.raises(StudyError, match="--set"):
        dse.run(IN_MEMORY, trials=4, resume=True, overrides=["price=-10%"], **settings)


def test_overrides_of_a_link_that_the_space_adds(tmp_path):
    link = {"kind": "pcie", "bandwidth": "20 GB/s", "latency": "5 us"}
    space = IN_MEMORY | {"links": {"slow": link}}
    space["parameters"] = IN_MEMORY["parameters"] | {"link": ["slow"]}
    done = dse.run(
        space,
        trials=1,
        overrides=["link.slow.bandwidth=*2"],
        executor="serial",
        out=tmp_path / "s",
    )
    assert stored_space(done.result).links[0].bandwidth_bytes_per_s == 40e9


@pytest.mark.parametrize(
    ("written", "place", "words"),
    [
        ("{from: h100_sxm, prise: 2 USD/h}", "7:24", "`price`"),
        ("{from: h100_sxm, price: 2}", "7:31", "USD/GPU/h"),
        ("{from: h100_sxn}", "7:8", "`h100_sxm`"),
        ("{price: 2 USD/h}", "7:7", "missing"),
        ("{from: h100_sxm, name: b200_sxm}", "7:30", "built-in"),
        ("{from: h100_sxm, links: {nvswich: {bandwidth: 3 GB/s}}}", "7:42", "`nvswitch`"),
        ("{from: h100_sxm, device: {memory: {capacity: 1 GiB}}}", "7:8", "reserved"),
        ("{from: h100_sxm, price: 1 USD/h, name: my_a100}", "8:7", "my_a100"),
    ],
)
def test_mistakes_have_a_place(written, place, words, tmp_path):
    text = SPACE.replace("{from: h100_sxm, price: 2.10 USD/GPU/h}", written)
    path = tmp_path / "space.yaml"
    path.write_text(text.replace("BASE", "a100_sxm_80"))
    with pytest.raises(ConfigError) as caught:
        run_study(path, RunOptions(out=tmp_path / "study", executor="serial"))
    assert f"space.yaml:{place}: " in str(caught.value)
    assert words in str(caught.value)
    assert not (tmp_path / "study").exists()


def test_a_wrong_override_leaves_no_study(tmp_path):
    for text, words in (("prise=2 USD/h", "price"), ("h100_sxm.price=2 USD/h", "platform")):
        with pytest.raises(ConfigError, match=words):
            dse.run(IN_MEMORY, overrides=[text], executor="serial", out=tmp_path / "study")
    assert not (tmp_path / "study").exists()
