from __future__ import annotations

from dataclasses import replace
import json
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from typer.testing import CliRunner
import yaml

from dse.cli._app import app
from dse.errors import ConfigError
from dse.report import build_view, render_report
from dse.search import RunOptions, TrialStatus, load_study, read_inputs, run
from dse.search._proposals import Proposal
from dse.search.analyse import decide
from dse.search.execute import SerialExecutor
from dse.search.space import ModelReference, load_space
from dse.workload import predict_job
from dse.workload.transformer import TransformerWorkload
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path
import pickle

SPACE = """
schema_version: 1
name: small_gpt
workload: {model: gpt_22b}
parameters:
  platform: a100_sxm_80
  world_size: [8, 16]
  global_batch_size: 16
  tensor: [2, 4, 8]
  pipeline: [1, 2]
  micro_batch_size: [1, 4]
  recompute: [none, selective, full]
  data_sharding: [none, zero1]
objectives:
  - {metric: throughput_tokens_per_s, direction: maximize}
  - {metric: memory_headroom_fraction, direction: maximize}
search: {sampler: nsga2, trials: 40, seed: 1, batch: 10}
"""


@pytest.fixture
def space(tmp_path) -> Path:
    path = tmp_path / "small_gpt.yaml"
    path.write_text(SPACE)
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study, to read only."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "small_gpt.yaml").write_text(SPACE)
    return run(folder / "small_gpt.yaml", RunOptions(out=folder / "study"))


def test_a_transformer_is_searched_and_written(study):
    result = study.result
    assert result.kind == "transformer"
    assert result.front
    for record in result.records:
        if record.prediction is None:
            assert record.reason
            continue
        parallelism = TransformerWorkload.parallelism(record.configuration)
        assert parallelism.world_size == record.configuration.world_size
        assert len(record.prediction.memory) == parallelism.pipeline
    trials = pd.read_csv(study.directory.trials)
    assert {"throughput_tokens_per_s", "model_flops_utilization", "recompute"} <= set(trials)
    assert not {"planner", "plan_gap", "lower_bound_s"} & set(trials)
    evaluated = trials[trials.status.isin(["feasible", "infeasible"])]
    parts = ["compute_s", "exposed_communication_s", "host_s", "idle_s"]
    total = evaluated[[f"mean_{part}" for part in parts]].sum(axis=1)
    assert total.to_numpy() == pytest.approx(evaluated.iteration_time_s.to_numpy(), rel=1e-6)


def test_the_front_is_that_of_the_model_alone(space, study):
    context = read_inputs(space).context
    for record in study.result.front:
        platform = context.platforms[record.configuration.platform]
        job = context.workload.job(platform, dict(record.parameters))
        alone = predict_job(job, platform.quote(record.configuration.world_size))
        assert alone == record.prediction
        assert record.metrics["throughput_tokens_per_s"] == pytest.approx(
            16 * 2048 / alone.iteration_time_s
        )
    best = {record.values for record in study.result.front}
    feasible = [r for r in study.result.records if r.status is TrialStatus.FEASIBLE]
    for record in feasible:
        beaten = any(
            all(one >= other for one, other in zip(values, record.values, strict=True))
            for values in best
        )
        assert beaten


def test_impossible_degrees_are_rejected_with_their_reason(space, tmp_path):
    study = run(space, RunOptions(trials=200, out=tmp_path / "all"))
    rejected = [r.reason for r in study.result.records if r.status is TrialStatus.REJECTED]
    words = " ".join(rejected)
    assert "does not divide 8 ranks" in words
    assert "with one replica shards nothing" in words
    assert study.exhausted


def test_a_study_is_read_back_as_it_was(study):
    again = load_study(study.directory.root).result
    assert again.kind == "transformer"
    assert again.records == study.result.records
    assert decide(again) == decide(study.result)
    assert "micro batch" in decide(again).take.setup


def test_resuming_gives_the_front_of_an_uninterrupted_run(space, study, tmp_path):
    run(space, RunOptions(trials=20, out=tmp_path / "half"))
    resumed = run(space, RunOptions(trials=40, out=tmp_path / "half", resume=True))
    assert [r.values for r in resumed.result.front] == [r.values for r in study.result.front]


def test_evaluations_in_another_process_agree(space):
    context = read_inputs(space).context
    chosen = {
        "platform": "a100_sxm_80",
        "world_size": 16,
        "global_batch_size": 16,
        "link": "default",
        "network": "default",
        "tensor": 4,
        "pipeline": 2,
        "context": 1,
        "interleave": 1,
        "micro_batch_size": 1,
        "sequence_parallel": False,
        "recompute": "full",
        "data_sharding": "zero1",
        "program": "megatron",
    }
    proposals = [Proposal(0, tuple(chosen.items()))]
    (record,) = SerialExecutor(context).run(proposals)
    sent = pickle.loads(pickle.dumps(context))
    assert list(SerialExecutor(sent).run(proposals)) == [record]
    assert pickle.loads(pickle.dumps(record)) == record


def test_plans_and_exports(study):
    root = study.directory.root
    record = study.result.front[0]
    plan = json.loads((root / "plans" / f"{record.number}.json").read_text())
    assert plan["model"] == "gpt_22b"
    assert plan["parallelism"]["tensor"] == record.configuration.value("tensor")

    def exported(kind: str) -> str:
        command = ["export", str(root), "--candidate", str(record.number), "--format", kind]
        found = CliRunner().invoke(app, command, catch_exceptions=False)
        assert found.exit_code == 0
        return found.stdout

    arguments = exported("megatron").split("\n")
    assert f"--tensor-model-parallel-size {plan['parallelism']['tensor']}" in arguments
    assert "--num-layers 48" in arguments
    assert yaml.safe_load(exported("yaml")) == json.loads(exported("json")) == plan
    with pytest.raises(ConfigError, match="torchrec: not for a transformer"):
        exported("torchrec")


def test_the_page_speaks_of_stages(study):
    page = render_report(study.result)
    assert "by stage" in page
    assert "Sharding plan</h3>" not in page
    assert build_view(study.result).rank_word == "Stage"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  tensor: [2, 4, 8]", "  tensor: 2\n  data: 2", "`data` is not chosen"),
        (
            "recompute: [none,",
            "sharding_types: [table_wise]\n  recompute: [none,",
            "of a trans",
        ),
        ("throughput_tokens_per_s", "speedup", "a transformer has no metric `speedup`"),
        ("search: {", "search: {planners: [size_greedy], ", "a transformer has no sharding plan"),
        ("recompute: [none,", "recompute: [all,", "expected"),
        ("gpt_22b", "dlrm_dcnv2", "`tensor` is for spaces of a transformer, not of a recommend"),
    ],
)
def test_mistakes_in_a_space(space, old, new, words):
    space.write_text(SPACE.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_inputs(space)
    assert words in str(caught.value)


def test_a_parameter_of_another_kind_is_named_and_not_the_program(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(
        "schema_version: 1\n"
        "name: mixed\n"
        "workload: {model: dlrm_tiny}\n"
        "parameters:\n"
        "  {platform: cpu, world_size: 1, global_batch_size: 64, program: torchrec, tensor: 2}\n"
        "objectives: [{metric: throughput_samples_per_s, direction: maximize}]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_space(path)
    (problem,) = caught.value.diagnostics
    assert (problem.field, problem.line, problem.column) == ("parameters.tensor", 5, 84)


def test_a_space_made_by_hand_may_not_mix_kinds(space):
    mixed = replace(load_space(space), workload=ModelReference("dlrm_tiny", "transformer"))
    with pytest.raises(ConfigError, match="the parameters are those of a transformer"):
        read_inputs(mixed)


def test_the_model_decides_where_parameters_are_those_of_several_kinds(space):
    text = SPACE
    for line in ("tensor", "pipeline", "micro_batch_size", "recompute", "data_sharding"):
        text = "\n".join(row for row in text.split("\n") if not row.startswith(f"  {line}:"))
    space.write_text(text)
    found = read_inputs(space).space
    assert found.workload.kind == "transformer"
    assert found.choices("tensor") == (1,)


def test_an_unknown_training_program(space):
    space.write_text(SPACE.replace("  pipeline: [1, 2]", "  pipeline: 1\n  software: megatrom"))
    with pytest.raises(ConfigError, match="megatron") as raised:
        read_inputs(space)
    (problem,) = raised.value.diagnostics
    assert (problem.line, problem.field) == (11, "parameters.software")


def test_a_parameter_of_another_kind_hides_no_other_mistakes(space):
    space.write_text(
        SPACE.replace(
            "  tensor: [2, 4, 8]", "  hot_rows: true\n  tensor: [0]\n  schedul: gpipe", 1
        )
    )
    with pytest.raises(ConfigError) as caught:
        read_inputs(space)
    fields = {problem.field for problem in caught.value.diagnostics}
    assert fields == {"parameters.hot_rows", "parameters.tensor[0]", "parameters.schedul"}


ODD_LENGTH = """
schema_version: 1
name: odd_length
workload: {model: odd.yaml}
parameters:
  platform: h100_sxm
  world_size: 8
  global_batch_size: 8
  context: [4, 8]
  context_exchange: [ring, ulysses]
  data_sharding: zero1
objectives:
  - {metric: throughput_tokens_per_s, direction: maximize}
search: {sampler: grid, trials: 4, seed: 1}
"""


def test_a_ring_that_cannot_share_a_sequence_is_rejected(tmp_path):
    shipped = yaml.safe_load((ROOT / "models" / "llama3_8b.yaml").read_text())
    model = shipped | {"name": "odd", "sequence_length": 8200}
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(model))
    (tmp_path / "odd_length.yaml").write_text(ODD_LENGTH)
    result = run(tmp_path / "odd_length.yaml", RunOptions(out=tmp_path / "study")).result
    rejected = [one for one in result.records if one.status is TrialStatus.REJECTED]
    assert len(result.records) == 4
    assert [(one.params["context"], one.params["context_exchange"]) for one in rejected] == [
        (8, "ring")
    ]
    assert "8200 tokens" in rejected[0].reason
