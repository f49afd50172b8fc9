"""`dse compare`."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from dse.cli._app import app
from dse.errors import StudyError
from dse.search import RunOptions, run
from dse.search.revise import revise_study, write_revision
from tests.search.revise.studies import SPACE, study_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    study = study_of(SPACE)
    changed = revise_study(study.result, ["device.memory.bandwidth=*2", "price=-10%"])
    new = write_revision(changed, study.directory, tmp_path_factory.mktemp("compare") / "new")
    return study.directory.root, new.directory.root


def compare(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_for_people(folders):
    done = compare(*folders)
    assert done.exit_code == 0, done.output
    for words in (
        "what differs",
        "device.memory.bandwidth",
        "front of A",
        "front of B",
        "relative to the box between",
        "16 outcomes in both",
        "the second is ahead in",
    ):
        assert words in done.output


def test_for_machines(folders):
    fields = json.loads(compare(*folders, "--json").output)
    assert fields["same_objectives"]
    assert fields["hypervolume_ratio"] > 1
    assert len(fields["fronts"]) == 2
    assert len(fields["common"]) == 16
    assert any(pair["time_ratio"] < 1 and pair["reasons"] for pair in fields["common"])
    moving = [found for found in fields["differences"] if found["moves_predictions"]]
    assert {found["quantity"] for found in moving} == {"device.memory.bandwidth"}
    assert fields["conclusion"].startswith("the second is ahead in")


def test_the_same_study_twice(folders):
    done = compare(folders[0], folders[0])
    assert "made from the same inputs, versions and settings" in done.output


def test_what_is_no_study(folders, tmp_path):
    done = compare(folders[0], tmp_path)
    assert isinstance(done.exception, StudyError)


TRANSFORMER = """\
schema_version: 1
name: {model}
workload: {{model: {model}}}
parameters: {{platform: h100_sxm, world_size: 8, global_batch_size: 64, micro_batch_size: 1}}
objectives:
  - {{metric: cost_usd_per_million_samples, direction: minimize}}
"""


def test_costs_of_samples_with_other_numbers_of_tokens_are_in_one_unit(tmp_path):
    costs = {}
    for model in ("bert_large", "gpt_1_7b"):
        path = tmp_path / f"{model}.yaml"
        path.write_text(TRANSFORMER.format(model=model))
        (best,) = run(path, RunOptions(out=tmp_path / model)).result.front
        costs[model] = 1e3 * best.metrics["cost_usd_per_million_samples"]
    output = compare(tmp_path / "bert_large", tmp_path / "gpt_1_7b").output
    front, best = output.split("front of A")[1].split("best\n")
    assert "tokens)" not in front
    assert "samples)" in front
    (row,) = (line for line in best.splitlines() if line.startswith("Cost"))
    assert row.startswith("Cost (USD per billion samples)")
    shown = [float(each.replace(",", "")) for each in re.findall(r"([\d.,]+) \(#", row)]
    assert shown == pytest.approx(list(costs.values()), rel=1e-2)
    # Where samples are the same, tokens are what costs are of.
    alone = compare(tmp_path / "gpt_1_7b", tmp_path / "gpt_1_7b").output
    assert "Cost (USD per billion tokens)" in alone
