"""Examples load, run with little, and print what their pages show."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import runpy
import sys

import pytest
from typer.testing import CliRunner
import yaml

from dse.cli._app import app
from dse.machine.platforms import load_platform
from dse.model import ModelRecipe, compose_model, load_model, read_table_list
from dse.search.space import load_space
from dse.workload import PlanEffort, predict_job
from dse.workload.dlrm import DlrmWorkload
from tests.cli.running import answer, dse
from tests.conftest import ROOT
from tests.documents_of_users import blocks_of, missing_line, others_may_warn, run_page

EXAMPLES = ROOT / "examples"
SPACES = [*sorted(EXAMPLES.rglob("*space.yaml")), EXAMPLES / "cpu_sharding.yaml"]
PACKAGE = EXAMPLES / "plugin_workload/dse_mlp/__init__.py"
MODELS = sorted(EXAMPLES.rglob("model.yaml"))
PROGRAMS = sorted({*EXAMPLES.rglob("*.py")} - {PACKAGE})
#: Those that need nothing that only another step of the documentation makes or installs.
RUNNABLE = [path for path in SPACES if "trace" not in path.name and "plugin" not in str(path)]
NEEDS = {"capture_mlp.py": "torch", "torchrec_plan.py": "torchrec"}


def name(path):
    return str(path.relative_to(EXAMPLES))


def test_every_file_is_in_the_index():
    index = (EXAMPLES / "README.md").read_text()
    files = {path for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".yaml")}
    assert files == {*SPACES, *MODELS, *PROGRAMS, PACKAGE}
    for path in files:
        assert name(path) in index, path


@pytest.mark.parametrize("path", SPACES, ids=name)
def test_spaces_load(path):
    assert load_space(str(path)).size > 1


def run_one_trial(path, *arguments):
    command = ["run", str(path), "--trials", "1", "--executor", "serial", "--json"]
    done = CliRunner().invoke(app, [*command, *map(str, arguments)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["evaluated"] == 1
    # Configurations without a meaning are rejected before they count.
    assert found["counts"]["feasible"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in SPACES if "trace" not in path.name and "plugin" not in str(path)],
    ids=name,
)
def test_spaces_run_with_one_trial(path, tmp_path):
    # Without the local search of hundreds of tables, and the bounds of all configurations.
    content = yaml.safe_load(path.read_text())
    content["search"] = {**content.get("search", {}), "improvement_rounds": 0}
    run_one_trial(written(tmp_path, content), "--sampler", "random", "--out", tmp_path / "out")
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_study_of_the_index_can_be_run_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_one_trial(EXAMPLES / "cpu_sharding.yaml")
    assert (tmp_path / "results/example/report.html").is_file()


def run_program(path, *arguments, capsys, monkeypatch):
    """Runs a program in this process; returns what it prints."""
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    monkeypatch.chdir(ROOT)
    with contextlib.suppress(SystemExit), others_may_warn():
        runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("path", PROGRAMS, ids=name)
def test_programs_print_their_usage(path, capsys, monkeypatch):
    needed = NEEDS.get(path.name)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    assert "usage" in run_program(path, "--help", capsys=capsys, monkeypatch=monkeypatch)


def test_planning_from_python_with_a_small_model(capsys, monkeypatch):
    arguments = ("--model", "dlrm_tiny", "--ranks", "4", "--batch", "4096", "--seconds", "1")
    path = EXAMPLES / "meta_856/planners.py"
    printed = run_program(path, *arguments, capsys=capsys, monkeypatch=monkeypatch)
    lines = printed.splitlines()
    times = {line.split()[0]: float(line.split()[1]) for line in lines[1:] if " ms;" in line}
    assert times["search"] == min(times.values())
    assert len(times) == 7


def test_the_tables_of_criteo_are_those_of_the_built_in_model(tmp_path):
    listed = read_table_list(EXAMPLES / "criteo/tables.csv")
    recipe = ModelRecipe("criteo", 13, (512, 256, 128), (1024, 1024, 512, 256, 1), dim=128)
    path = tmp_path / "criteo.yaml"
    path.write_text(compose_model(listed, recipe))
    mine, built_in = load_model(str(path)).tables, load_model("dlrm_dcnv2").tables
    assert len(mine) == 26
    for one, other in zip(mine, built_in, strict=True):
        assert (one.name, one.rows, one.dim) == (other.name, other.rows, other.dim)
        assert one.pooling_factors == other.pooling_factors


@pytest.mark.slow
def test_the_page_of_criteo(tmp_path):
    (tmp_path / "examples").symlink_to(EXAMPLES)
    page = EXAMPLES / "criteo/README.md"
    assert run_page(page, tmp_path, lambda block: "dse run" not in block.text) == []
    made = answer("model", "show", tmp_path / "results/criteo.yaml")
    built_in = answer("model", "show", "dlrm_dcnv2")
    for document in (made, built_in):
        document.pop("name"), document.pop("description")
    assert made == built_in


@pytest.mark.slow
def test_the_front_of_criteo_is_found_among_the_largest_batches(tmp_path):
    # A sixth of the grid, in which all of the front lies.
    space = yaml.safe_load((EXAMPLES / "criteo/space.yaml").read_text())
    parameters = space["parameters"]
    parameters |= {"global_batch_size": 131072}
    parameters |= {"sharding_types": parameters["sharding_types"][-1:]}
    space["search"] |= {"trials": 18}
    done = dse("run", written(tmp_path, space), "--jobs", 2, "--out", tmp_path / "study")
    assert done.returncode == 0, done.stderr
    shown = output_below(EXAMPLES / "criteo/README.md", "dse run")
    assert missing_line(shown.rpartition("108 configurations")[0], done.stdout, 0.25) is None


@pytest.mark.slow
def test_the_page_of_856_tables(tmp_path):
    # Its study takes a minute; a trial of it is run above.
    (tmp_path / "examples").symlink_to(EXAMPLES)
    page = EXAMPLES / "meta_856/README.md"
    run_page(page, tmp_path, lambda block: block.text.startswith("python"))
    # The network decides, so the plan of a second serves, without a bound on all plans.
    parameters = {
        "world_size": 16,
        "global_batch_size": 65536,
        "network": "ethernet_100g",
        "program": "ideal",
        "launch": "cuda_graphs",
    }
    workload = DlrmWorkload(load_model("dlrm_meta2021"))
    job = workload.job(load_platform("h100_sxm"), parameters)
    predicted = predict_job(job.planned(PlanEffort(time_limit_s=1.0)))
    printed = f"throughput {predicted.throughput_samples_per_s:,.0f} samples/s"
    assert missing_line(output_below(page, "dse predict"), printed, 0.25) is None


def output_below(page, command):
    """Returns what a page shows below a command."""
    blocks = blocks_of(page)
    return next(
        below.text
        for block, below in itertools.pairwise(blocks)
        if block.text.startswith(command) and "output" in below.remarks
    )


def written(folder, space):
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    return path
