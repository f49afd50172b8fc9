"""Published runs of TorchRec's pipelines beside their predictions."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from benchmarks.folders import DATA
from dse.errors import DseError
from dse.workload.dlrm import TrainPipeline
from tests.conftest import ROOT

pytest.importorskip("pandas")

RUNS = DATA / "published/torchrec_pipeline_bench.csv"


@pytest.fixture(scope="module")
def cases():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("pipeline_cases")
    finally:
        sys.path.pop(0)


def test_runs_are_those_of_their_files(cases):
    """TorchRec's light benchmark: 40 tables of 256 columns, one of 512, one of 2,048, cut."""
    light = next(run for run, _ in cases.MEMORY if run.name == "base_pipeline_light")
    job = light.job()
    tables = job.problem.model.tables
    assert sum(table.dim for table in tables) == 40 * 256 + 512 + 2048
    assert sum(table.weighted for table in tables) == 20
    assert job.problem.software.pipeline is TrainPipeline.BASE
    assert job.problem.global_batch_size == 2 * 32_768


def test_a_file_without_the_runs_is_refused(cases, tmp_path):
    table = tmp_path / "runs.csv"
    table.write_text("commit,name\n1,a\n")
    with pytest.raises(DseError, match="is missing"):
        cases.compare_pipelines(table, as_json=True)
    with pytest.raises(DseError, match="cannot read"):
        cases.compare_pipelines(tmp_path / "missing.csv", as_json=True)


@pytest.mark.skipif(not RUNS.is_file(), reason=f"no published runs at {RUNS}")
def test_published_ratios_and_memory(cases, capsys):
    cases.compare_pipelines(RUNS, as_json=True)
    found = json.loads(capsys.readouterr().out)
    errors = {row["group"]: row["error"] for row in found["ratios"]}
    for group in ("base : sparse-dist, first run", "sparse-dist : prefetch", "UVM : device"):
        assert abs(errors[group]) < 0.15
    for row in found["memory"]:
        # What is allocated at the peak is counted on the safe side.
        limit = 0.1 if row["memory"] == "reserved" else 0.3
        assert -0.05 < row["error"] < limit


@pytest.mark.parametrize("text", ["", "0 GB", "-3 GB", "33000 MB", "much GB"])
def test_a_figure_that_is_none_is_the_problem_of_its_line(cases, tmp_path, capsys, text):
    table = tmp_path / "runs.csv"
    runs = [run.name for run, _ in cases.MEMORY]
    lines = [f"1,{name},5 ms,{text if name == runs[0] else '10 GB'},12 GB" for name in runs]
    table.write_text("\n".join([",".join(cases.COLUMNS), *lines]) + "\n")
    cases.compare_pipelines(table, as_json=False)
    assert "–" in capsys.readouterr().out
    cases.compare_pipelines(table, as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    first, second, *_ = found["memory"]
    assert runs[0] in first["problem"]
    assert "gpu_peak_alloc" in first["problem"]
    assert (first["published_gb"], first["error"]) == (None, None)
    assert (second["published_gb"], second["problem"]) == (12.0, "")
    (missing,) = (one for one in found["ratios"] if one["problem"])
    assert missing["group"] == "UVM : device"
