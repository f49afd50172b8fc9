"""`dse whatif`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dse.cli._app import app
from dse.errors import ConfigError, StudyError
from dse.search import load_study
from tests.search.revise.studies import SPACE, study_of


@pytest.fixture(scope="module")
def root():
    return study_of(SPACE).directory.root


def whatif(root, *arguments):
    return CliRunner().invoke(app, ["whatif", str(root), *map(str, arguments)])


def test_for_people(root):
    done = whatif(root, "--set", "platform.h100_sxm.price=20USD/h", "--set", "link.bandwidth=+20%")
    assert done.exit_code == 0, done.output
    for words in (
        "what changed",
        "price AWS p5.48xlarge",
        "450 GB/s",
        "540 GB/s",
        "front",
        "best",
        "plans are kept; a new search could find better ones (--replan N",
    ):
        assert words in done.output
    assert "simulated again" in done.output


def test_prices_alone_say_that_plans_are_as_good_as_before(root):
    done = whatif(root, "--set", "price=-10%", "--top", 1)
    rows = {line.partition(" (")[0]: line.split() for line in done.output.splitlines()}
    # A tenth less for the same samples in the same time.
    assert rows["Throughput"][-1] == "same"
    assert rows["Cost"][-2:] == ["-10.0", "%"]
    assert "as good as before" in done.output
    assert "--top" in done.output  # how to see the rest


def test_for_machines(root):
    done = whatif(root, "--set", "device.memory.bandwidth=+20%", "--replan", 1, "--json")
    assert done.exit_code == 0, done.output
    fields = json.loads(done.output)
    assert fields["changes"] == ["device.memory.bandwidth=+20%"]
    assert fields["candidates"]["simulated"] == 16
    assert len(fields["searched_again"]) == 1
    assert [figure["after"] for figure in fields["figures"]] == ["2.447 TB/s", "4.02 TB/s"]
    best = {move["metric"]: move for move in fields["best"]}
    assert best["throughput_samples_per_s"]["change"] >= 0
    front = [move for move in fields["front"] if move["rank_after"] is not None]
    assert [move["rank_after"] for move in front] == list(range(1, len(front) + 1))


def test_the_new_study_has_a_report(root, tmp_path):
    out = tmp_path / "new"
    done = whatif(root, "--set", "link.bandwidth=+20%", "--out", out)
    assert done.exit_code == 0, done.output
    assert (out / "report.html").stat().st_size > 10_000
    assert str(out / "report.html") in done.output.replace("\n", "")
    assert load_study(out).result.front
    again = whatif(root, "--set", "link.bandwidth=+20%", "--out", out)
    assert isinstance(again.exception, StudyError)


def test_nothing_feasible_is_told_by_the_exit_code(root):
    done = whatif(root, "--set", "memory=2GiB", "--set", "device.memory.reserved=1.999GiB")
    assert done.exit_code == 1
    assert "nothing is feasible" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --set PATH=VALUE"),
        (("--set", "link.bandwith=+20%"), "did you mean `bandwidth`"),
        (("--set", "platform.h100.price=1USD/h"), "did you mean `h100_sxm`"),
    ],
)
def test_wrong_changes(root, arguments, words):
    done = whatif(root, *arguments)
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)


def test_both_whatifs_point_at_each_other():
    runner = CliRunner()
    assert "dse trace whatif" in runner.invoke(app, ["whatif", "--help"]).output
    assert "dse whatif" in runner.invoke(app, ["trace", "whatif", "--help"]).output
