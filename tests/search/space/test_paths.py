"""Paths in a search space: each counts from the folder of the file that contains it."""

from __future__ import annotations

import shutil

import pytest

from dse.errors import ConfigError
from dse.search import RunOptions, load_study, stored_space
from dse.search import run as run_study
from dse.search.revise import revise_study
from dse.search.space import load_space
from tests.conftest import ROOT

SPACE = """\
schema_version: 1
name: paths
workload: {model: models/tiny.yaml}
parameters:
  platform:
    - machines/mine.yaml
    - {from: machines/mine.yaml, name: cheap, price: 1 USD/GPU/h}
  world_size: [4]
  global_batch_size: [4096]
  sharding_types: [[table_wise]]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
search: {sampler: grid, improvement_rounds: 0, planners: [size_greedy]}
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a space, its model and its platform, which is not the current one."""
    folder = tmp_path / "project"
    (folder / "models").mkdir(parents=True)
    (folder / "machines").mkdir()
    shutil.copy(ROOT / "models/dlrm_tiny.yaml", folder / "models/tiny.yaml")
    shutil.copy(ROOT / "platforms/a100_sxm_80.yaml", folder / "machines/mine.yaml")
    (folder / "space.yaml").write_text(SPACE)
    return folder


def test_all_of_them_count_from_its_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_study(folder / "space.yaml", RunOptions(out=tmp_path / "out", executor="serial"))
    shutil.rmtree(folder)
    result = load_study(tmp_path / "out").result
    feasible = {record.configuration.platform: record for record in result.records}
    mine = str(folder / "machines/mine.yaml")
    assert set(feasible) == {mine, "cheap"}
    assert feasible["cheap"].prediction.price_usd_per_hour == 4
    assert stored_space(result).choices("platform") == (mine, "cheap")
    changed = revise_study(result, ["cheap.price=2 USD/GPU/h"])
    prices = {
        one.configuration.platform: one.prediction.price_usd_per_hour
        for one in changed.after.records
    }
    assert prices == {mine: feasible[mine].prediction.price_usd_per_hour, "cheap": 8}


def test_names_in_its_own_folder_stay_short(folder, monkeypatch):
    monkeypatch.chdir(folder)
    space = load_space("space.yaml")
    assert space.workload.model == "models/tiny.yaml"
    assert space.choices("platform") == ("machines/mine.yaml", "cheap")


def test_nothing_is_looked_for_in_the_current_folder(folder, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    shutil.rmtree(folder / "models")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ConfigError) as caught:
        run_study(folder / "space.yaml", RunOptions(out=tmp_path / "out", executor="serial"))
    assert str(folder / "models/tiny.yaml") in str(caught.value)


def test_the_machine_of_a_trace_counts_from_there_too(folder):
    (folder / "trace.yaml").write_text(
        "schema_version: 1\nname: t\n"
        "workload: {trace: rank0.json, platform: machines/mine.yaml}\n"
        "parameters: {platform: [same, machines/mine.yaml]}\n"
        "objectives: [{metric: iteration_time_s, direction: minimize}]\n"
    )
    space = load_space(folder / "trace.yaml")
    mine = str(folder / "machines/mine.yaml")
    assert (space.workload.path, space.workload.platform) == (folder / "rank0.json", mine)
    assert space.choices("platform") == ("same", mine)


def test_names_that_there_are_not_are_reported_together_with_their_places(tmp_path):
    text = SPACE.replace("platform:\n    - machines/mine.yaml\n", "platform:\n    - h100_sxn\n")
    text = text.replace("    - {from: machines/mine.yaml, name: cheap, price: 1 USD/GPU/h}\n", "")
    file = tmp_path / "space.yaml"
    file.write_text(text.replace("[4096]\n", "[0]\n  program: torchrek\n"))
    with pytest.raises(ConfigError) as caught:
        load_space(file)
    assert {(one.line, one.column): one.field for one in caught.value.diagnostics} == {
        (3, 19): "workload.model",
        (6, 7): "parameters.platform[0]",
        (8, 23): "parameters.global_batch_size[0]",
        (9, 12): "parameters.program",
    }
