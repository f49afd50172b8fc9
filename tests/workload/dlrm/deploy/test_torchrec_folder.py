from __future__ import annotations

import json
import sys
import warnings

import pytest

from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from dse.workload import Configuration, predict_job, workload_from_text
from dse.workload.dlrm.deploy import load_train_script
from tests.launch.scripts import run_ranks

MODEL = """
schema_version: 1
kind: dlrm
name: six
description: Six tables
source: made for a test
dense_features: 13
bottom_mlp: [32, 16]
interaction: {kind: dot}
top_mlp: [32, 1]
precision: fp32
optimizer: {dense: adam, sparse: rowwise_adagrad}
global_batch_size: 256
table_defaults: {dim: 16}
tables:
  - {name: a, rows: 10000, pooling: [4, 1]}
  - {name: b, rows: 20000, pooling: 2, indices: {kind: zipf, alpha: 1.0}}
  - {name: c, rows: 500, pooling: 8}
  - {name: d, rows: 100}
  - {name: e, rows: 5000, count: 2}
"""
CROSS = "interaction: {kind: dcnv2_low_rank, layers: 2, low_rank: 8}"


def folder(text=MODEL, **options):
    workload, platform = workload_from_text(text), load_platform("cpu")
    parameters = {"world_size": 2, "global_batch_size": 256, "program": "torchrec"}
    job = workload.job(platform, parameters)
    types = ("table_wise", "column_wise", "data_parallel")
    solved = job.with_plan(job.solve(allowed_types=types).plan)
    configuration = Configuration(
        "dlrm", "cpu", 2, 256, tuple(parameters.items()), plan=solved.plan
    )
    return workload.framework_files(
        configuration, "torchrec", platform, prediction=predict_job(solved), **options
    )


def test_the_folder_holds_plan_job_and_scripts():
    files = folder(module_path="sparse.bags")
    assert set(files) == {"plan.json", "job.json", "load_plan.py", "train.py", "recipe.md"}
    job = json.loads(files["job.json"])
    assert job["batch_size_per_rank"] == 128
    assert job["module_path"] == "sparse.bags"
    assert job["sparse_optimizer"] == "EXACT_ROWWISE_ADAGRAD"
    assert [table["name"] for table in job["tables"]] == ["a", "b", "c", "d", "e_0", "e_1"]
    assert job["tables"][0]["features"] == ["a_0", "a_1"]
    assert set(json.loads(files["plan.json"])["plan"]) == {"sparse.bags"}
    assert "--nproc-per-node 2" in files["train.py"]
    assert f"{job['predicted_ms']:.3f} ms" in files["recipe.md"]


def test_names_open_no_block_and_no_element_of_the_recipe():
    hostile = "n\n```sh\n$(id)\n```\n<script>x</script>\x1b[2J"
    text = MODEL.replace("name: six", f"name: {json.dumps(hostile)}")
    usual, changed = (folder(one)["recipe.md"].splitlines() for one in (MODEL, text))
    assert changed[1:] == usual[1:]
    assert not set("`<>\x1b") & set(changed[0])


def test_scripts_need_nothing_of_this_package():
    files = folder()
    for name in ("load_plan.py", "train.py"):
        compile(files[name], name, "exec")
        assert "dse" not in files[name].replace("embedding_bag", "")


def test_a_model_that_cannot_be_trained_is_refused():
    multitask = MODEL.replace(
        "top_mlp: [32, 1]",
        "tasks: [{name: ctr, top_mlp: [32, 1]}, {name: cvr, top_mlp: [16, 1]}]",
    )
    with pytest.raises(ConfigError, match="tasks"):
        folder(multitask)


@pytest.fixture(scope="module")
def trainable():
    """Skips without TorchRec."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchrec  # noqa: F401
        except (ImportError, OSError) as error:
            pytest.skip(f"TorchRec cannot be imported ({error}); docs/torchrec.md installs it")


def write(where, files):
    where.mkdir()
    for name, text in files.items():
        (where / name).write_text(text)


@pytest.fixture(scope="module")
def train(trainable):
    """`train.py` as a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_train_script()


def test_a_plan_for_other_ranks_is_not_trained(train, tmp_path, monkeypatch):
    write(tmp_path / "job", folder())
    monkeypatch.setattr(train, "HERE", tmp_path / "job")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    for started in ("1", "3"):
        monkeypatch.setenv("WORLD_SIZE", started)
        with pytest.raises(SystemExit, match=f"for 2 ranks, not {started}"):
            train.main()


def test_shards_that_overlap_are_loud(train, tmp_path):
    plan = json.loads(folder(module_path="bags")["plan.json"])
    sharded = [one for one in plan["plan"]["bags"].values() if one.get("sharding_spec")]
    sharded[0]["sharding_spec"]["shards"] *= 2
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    model = train.Model(json.loads(folder(module_path="bags")["job.json"]))
    with pytest.raises(ValueError, match="overlap"):
        train.load_plan(tmp_path / "plan.json", model)


@pytest.mark.slow
@pytest.mark.parametrize("text", [MODEL, MODEL.replace("interaction: {kind: dot}", CROSS)])
def test_two_ranks_train_as_planned(trainable, tmp_path, text):
    write(tmp_path / "job", folder(text))
    printed, _ = run_ranks(tmp_path / "job" / "train.py", "--steps", 6)
    assert "6 tables, as planned: True" in printed


CHECK = """
from pathlib import Path
import torch, torchrec
from load_plan import load_plan
model = torch.nn.Module()
model.bags = torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=[
    torchrec.EmbeddingBagConfig(
        name=name, num_embeddings=rows, embedding_dim=16, feature_names=[name]
    )
    for name, rows in (("a", 9999), ("b", 20000), ("z", 5))
])
try:
    load_plan(Path(__file__).with_name("plan.json"), model)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_plan_of_another_model_is_loud(trainable, tmp_path):
    write(tmp_path / "job", folder(module_path="bags"))
    (tmp_path / "job" / "check.py").write_text(CHECK)
    (printed,) = run_ranks(tmp_path / "job" / "check.py", ranks=1)
    for found in ("[9999, 16] in the model", "only the plan has a table `c`", "table `z`"):
        assert found in printed
