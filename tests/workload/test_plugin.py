"""A kind of workload from another package, found through its entry point."""

from __future__ import annotations

from pathlib import Path

from jsonschema import Draft202012Validator
import pytest

from dse.api import Job
from dse.config import json_schema, parse_plain
from dse.errors import ConfigError
from dse.search import load_study
from dse.search.space import SpaceDocument
from dse.workload import Metric, load_workload, metrics_with, workload_kinds
from tests.cli.running import answer
from tests.cli.running import dse as command

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin_workload"
MODEL = EXAMPLE / "model.yaml"
JOB = (MODEL, "--platform", "h100_sxm", "--world-size", 8, "--global-batch-size", 8192)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Makes the example importable and announced, as its installation would."""
    metadata = tmp_path / "dse_mlp-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dse-mlp\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[dse.workloads]\nmlp = dse_mlp:MlpWorkload\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)
    workload_kinds.cache_clear()
    yield
    workload_kinds.cache_clear()


def test_nothing_here_knows_the_example():
    sources = [path.read_text() for path in (ROOT / "dse").rglob("*.py")]
    assert sources
    assert not any("dse_mlp" in text or "MlpWorkload" in text for text in sources)
    assert len((EXAMPLE / "dse_mlp" / "__init__.py").read_text().splitlines()) <= 200


def test_without_its_package_the_kind_is_unknown():
    workload_kinds.cache_clear()
    with pytest.raises(ConfigError, match=r"model\.yaml:2.*mlp"):
        load_workload(MODEL)


@pytest.mark.usefixtures("installed")
def test_its_spaces_follow_the_schema():
    schema = json_schema(SpaceDocument)
    space = parse_plain((EXAMPLE / "space.yaml").read_text())
    assert Draft202012Validator(schema).is_valid(space)


@pytest.mark.usefixtures("installed")
def test_a_prediction_is_plausible():
    found = answer("predict", *JOB)
    width, layers, ranks, samples = 8192, 24, 8, 8192
    arithmetic_s = 6 * samples * layers * width**2 / (989e12 * ranks)
    update_s = 30 * layers * width**2 / 3.35e12
    least_s = max(arithmetic_s, 2 * 7 / 8 * 2 * layers * width**2 / 450e9) + update_s
    assert least_s < found["iteration_time_s"] < 2 * least_s
    assert found["iteration_time_p5_s"] < found["iteration_time_s"] < found["iteration_time_p95_s"]
    assert found["throughput_samples_per_s"] == pytest.approx(samples / found["iteration_time_s"])
    assert len(found["breakdown"]) == len(found["memory_bytes_per_rank"]) == ranks
    for parts in found["breakdown"]:
        assert sum(parts.values()) == pytest.approx(found["iteration_time_s"], rel=1e-6)
    # Weights and gradients of two bytes, twelve bytes of the optimizer.
    assert found["memory_bytes_per_rank"][0] > 16 * layers * width**2
    assert found["feasible"]
    assert (found["program"], found["precision"]) == ("pytorch", "bf16")
    assert found["bound_by"] == "link_bandwidth"


@pytest.mark.usefixtures("installed")
def test_an_explanation_and_a_comparison_for_people():
    done = command("predict", *JOB, "--explain", "--versus", "program=pytorch,world_size=16")
    assert done.returncode == 0, done.stderr
    for text in ("gradient reduction", "optimizer", "memory bandwidth", "from A to B, in ms"):
        assert text in done.stdout


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--tensor", 2), ("--tensor", "multilayer perceptron", "--precision")),
        (("--plan", "plan.json"), ("--plan", "multilayer perceptron")),
        (("--program", "torchrec"), ("torchrec", "pytorch")),
        (("--precision", "fp7"), ("--precision", "bf16", "fp8")),
        (("--versus", "model=dlrm_tiny"), ("recommendation model", "multilayer perceptron")),
    ],
)
def test_options_of_other_kinds_are_refused(options, expected):
    done = command("predict", *JOB, *options)
    assert done.returncode == 2
    assert all(text in done.stderr for text in expected)


@pytest.mark.usefixtures("installed")
def test_it_may_bring_a_metric_of_its_own(tmp_path, monkeypatch):
    import dse_mlp

    own = Metric("layers_per_s", "Layers", maximize=True, unit="layers/s", digits=0)
    monkeypatch.setattr(dse_mlp.MlpWorkload, "metrics", metrics_with(own))
    monkeypatch.setattr(dse_mlp.MlpJob, "metrics", lambda _, time_s: ((own.name, 24 / time_s),))
    assert answer("predict", *JOB)["layers_per_s"] > 0
    space = (EXAMPLE / "space.yaml").read_text()
    space = space.replace("model.yaml", str(MODEL))
    (tmp_path / "space.yaml").write_text(space.replace("throughput_samples_per_s", own.name))
    command("run", tmp_path / "space.yaml", "--trials", 4, "--out", tmp_path / "study")
    study = load_study(tmp_path / "study").result
    assert study.objectives[0].metric == own.name
    for record in study.front:
        assert record.values[0] == pytest.approx(24 / record.prediction.iteration_time_s)
    assert "layers/s" in (tmp_path / "study" / "report.html").read_text()


@pytest.mark.usefixtures("installed")
def test_it_has_no_plan_to_shard():
    done = command("shard", *JOB)
    assert done.returncode == 2
    assert "no embedding tables" in done.stderr


@pytest.mark.usefixtures("installed")
def test_its_programs_are_listed():
    rows = answer("list", "programs")
    assert {row["name"] for row in rows if row["kind"] == "mlp"} == {"ideal", "pytorch"}


@pytest.mark.usefixtures("installed")
def test_from_python():
    job = Job(MODEL, "h100_sxm", world_size=8, global_batch_size=8192, program="pytorch")
    assert job.explain().iteration_time_s == pytest.approx(job.predict().iteration_time_s)
    with pytest.raises(ConfigError, match="8191"):
        Job(MODEL, "h100_sxm", world_size=8, global_batch_size=8191).predict()
