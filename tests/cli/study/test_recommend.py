"""`dse recommend`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dse.api import Job
from dse.cli._app import app
from dse.errors import ConfigError
from dse.machine.platforms import load_platform

SMALL = ("--platforms", "h100_sxm,v100_dgx1", "--world-sizes", "8,16", "--batch-sizes", "16384")
#: One node of each platform, and two over every network that they can be rented with.
COUNT = 2 + sum(len(load_platform(name).rented_networks(16)) for name in ("h100_sxm", "v100_dgx1"))


def recommend(*arguments, model="dlrm_tiny"):
    return CliRunner().invoke(app, ["recommend", model, *map(str, arguments)])


def test_a_plan_that_can_be_predicted(tmp_path):
    path = tmp_path / "plan.json"
    done = recommend("--target", "1M samples/s", *SMALL, "--export", path, "--json")
    assert done.exit_code == 0, done.output
    fields = json.loads(done.output)
    answer = fields["answer"]
    assert answer["throughput_samples_per_s"] >= 1e6
    assert json.loads(path.read_text()) == answer["plan"]
    job = Job(
        "dlrm_tiny",
        answer["platform"],
        world_size=answer["world_size"],
        global_batch_size=answer["global_batch_size"],
        network=answer["network"] or "",
    )
    predicted = job.predict(path)
    assert answer["iteration_time_s"] == pytest.approx(predicted.iteration_time_s, rel=1e-9)
    assert answer["price_usd_per_hour"] == predicted.price_usd_per_hour
    assert fields["configurations"] == COUNT
    assert sum(fields["verdicts"].values()) == COUNT
    assert answer["rented"]
    assert answer["offer"]["usd_per_hour"] <= answer["price_usd_per_hour"]
    assert fields["space"][0] == "platforms h100_sxm, v100_dgx1"


def test_for_people():
    done = recommend("--deadline", "1h", "--samples", "1G", *SMALL)
    assert done.exit_code == 0, done.output
    for words in (
        "the cheapest that trains 1 G samples in 1 h: ",
        "whole job",
        "with a probability of",
        "the best on each platform",
        f"{COUNT} configurations looked at",
        "space: platforms h100_sxm, v100_dgx1; world sizes 8, 16; batches 16,384",
    ):
        assert words in done.output


def test_what_cannot_be_reached():
    done = recommend("--target", "1T samples/s", *SMALL)
    assert done.exit_code == 1
    assert f"none of {COUNT} configurations does" in done.output
    assert "the closest is" in done.output
    assert "what limits it: bound by" in done.output
    poor = recommend("--budget", "1USD/h", *SMALL)
    assert poor.exit_code == 1
    assert "the cheapest that can run it is 8 × v100_dgx1" in poor.output


def test_transformers(tmp_path):
    path = tmp_path / "step.json"
    done = recommend(
        *("--budget", "60USD/h", "--platforms", "h100_sxm", "--world-sizes", "8,16"),
        *("--batch-sizes", "32", "--export", path),
        model="gpt_1_7b",
    )
    assert done.exit_code == 0, done.output
    assert "8 × h100_sxm" in done.output
    assert json.loads(path.read_text())["parallelism"]


@pytest.mark.parametrize(("batch", "warned"), [(512, False), (1024, True)])
def test_a_batch_above_the_models_own_is_told(batch, warned):
    # GPT 1.7B has a batch of 512 of its own.
    done = recommend(
        *("--budget", "60USD/h", "--platforms", "h100_sxm", "--world-sizes", "8"),
        *("--batch-sizes", batch),
        model="gpt_1_7b",
    )
    assert f"batch {batch:,}" in done.output
    assert ("2 × the model's own 512" in done.output) == warned


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give exactly one of target"),
        (("--target", "1M/s", "--deadline", "3h"), "give exactly one of"),
        (("--target", "1M"), "target: expected samples in a time"),
        (("--deadline", "3h"), "say how much is trained"),
        (("--deadline", "3 GB", "--samples", "1G"), "deadline: expected a time"),
        (("--deadline", "3h", "--samples", "many"), "samples: expected a number of samples"),
        (("--target", "1M/s", "--samples", "1G"), "samples go with"),
        (("--budget", "500USD"), "budget: say how much"),
        (("--budget", "500 EUR", "--samples", "1G"), "budget: expected a sum of money"),
        (("--target", "1M/s", "--world-sizes", "8,x"), "expected whole numbers"),
        (("--target", "1M/s", "--precisions", "fp17"), "did you mean `fp16`"),
        (("--target", "1M/s", "--confidence", "20 %"), "at least 50 %"),
        (("--target", "1M/s", "--platforms", "cpu"), "has no on_demand price"),
    ],
)
def test_wrong_questions(arguments, words):
    done = recommend(*arguments)
    assert isinstance(done.exception, ConfigError), done.output
    assert words in str(done.exception)


def test_batches_networks_and_what_is_sure():
    done = recommend(
        *("--target", "1M samples/s", "--platforms", "h100_sxm", "--world-sizes", "1,16"),
        *("--network", "tcpx_800g", "--program", "hugectr", "--json"),
    )
    assert done.exit_code == 0, done.output
    fields = json.loads(done.output)
    # Two world sizes with the model's own batch and three doubles of it.
    assert fields["configurations"] == 8
    assert fields["program"] == "hugectr"
    assert "networks tcpx_800g between nodes" in fields["space"]
    answer, sure = fields["answer"], fields["sure"]
    assert (sure is None) == (answer["probability"] >= 0.95)
    assert sure is None or sure["probability"] >= 0.95
    assert (fields["own_batch"] is None) or answer["global_batch_size"] > fields[
        "model_batch_size"
    ]


def test_several_nodes_of_a_provider_and_what_has_no_price():
    done = recommend(
        *("--target", "1k samples/s", "--platforms", "h100_sxm,v100_dgx2", "--world-sizes", "16"),
        *("--batch-sizes", "16384", "--price-provider", "AWS", "--json"),
    )
    assert done.exit_code == 0, done.output
    fields = json.loads(done.output)
    answer = fields["answer"]
    assert (answer["network"], answer["offer"]["provider"]) == ("efa_3200g", "AWS")
    assert answer["offer"]["networks"] == ["efa_3200g"]
    assert (answer["price_usd_per_hour"], answer["rented"]) == (110.08, "2 × AWS p5.48xlarge")
    (left,) = fields["unpriced"]
    assert (left["platform"], left["world_sizes"]) == ("v100_dgx2", None)
    assert "AWS" in left["reason"]


def test_a_platform_that_cannot_run_it_is_named():
    arguments = (
        *("--target", "0.1 samples/s", "--platforms", "l4_pcie,h200_sxm", "--world-sizes", "8"),
        *("--batch-sizes", "64"),
    )
    done = recommend(*arguments, model="llama3_70b")
    assert done.exit_code == 0, done.output
    assert "l4_pcie cannot run it: " in done.output
    done = recommend(*arguments, "--json", model="llama3_70b")
    (impossible,) = json.loads(done.output)["impossible"]
    assert impossible["platform"] == "l4_pcie"
